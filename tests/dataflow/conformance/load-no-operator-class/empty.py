class Operators:
    pass
