"""Any torch network: a step and an estimate, nothing proven."""
