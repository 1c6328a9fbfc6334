from headrace.base.secrets import Secrets


def test_every_spelling_of_a_value_is_shown_as_its_name() -> None:
    secrets = Secrets({"TOKEN": 'a/b "c"\n'})
    assert secrets.hide('before a/b "c"\n after') == "before {{ TOKEN }} after"
    assert secrets.hide(r'{"x": "a/b \"c\"\n"}') == '{"x": "{{ TOKEN }}"}'
    assert secrets.hide("http://h/a%2Fb%20%22c%22%0A") == "http://h/{{ TOKEN }}"
    assert secrets.hide(repr('a/b "c"\n')) == "'{{ TOKEN }}'"


def test_the_longer_of_two_values_is_hidden_first() -> None:
    secrets = Secrets({"SHORT": "abcd", "LONG": "abcdef"})
    assert secrets.hide("abcdef abcd") == "{{ LONG }} {{ SHORT }}"


def test_values_that_are_too_short_for_a_secret_are_left_alone() -> None:
    assert Secrets({"PORT": "1", "EMPTY": ""}).hide("epoch 11") == "epoch 11"


def test_a_text_names_its_secrets_and_absent_ones_hide_nothing() -> None:
    secrets = Secrets.named_in(
        ["{{ A_1 }}x{{B}}", "{{ ABSENT }}"], {"A_1": "first", "B": "second", "C": "third"}
    )
    assert secrets.hide("first second third") == "{{ A_1 }} {{ B }} third"
