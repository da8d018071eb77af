"""Solving linear systems and `a(u) = 0`; whatever comes out, the bound charges what is left."""
