"""The certificate: facts, what follows from them, and how to check it. Nothing here knows torch."""
