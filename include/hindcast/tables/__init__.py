"""The control plane: who owns what, how far it is, and what happened. Pure Python and deltalake; no JVM, no scheduler."""
