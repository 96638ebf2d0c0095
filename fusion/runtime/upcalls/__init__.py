"""Python that native code asks for, on threads of its own."""
