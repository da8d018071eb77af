"""What is kept of a source before it goes: its gradient and Hessian at the optimum, and no row."""
