import mathrl


def test_x(small_project):
    print(mathrl.runs().to_string())
    print(mathrl.compare("sft", "rl")["comparison"]["verdict"])
