raise ValueError("at import")


class Operator:
    pass
