"""Messages through a chain of two operators, in Headrace and in the released dora."""
