from surely_not_installed import something


class Operator:
    thing = something
