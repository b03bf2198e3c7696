"""Nothing that a model writes is run, and what is harmless has Python's value."""

from absl.testing import absltest, parameterized

from awm_jax.judging import literals


class ParseTest(parameterized.TestCase):
    @parameterized.parameters(
        ("3/4", 0.75),
        ("2020-10-12", 1998),
        ("1,234", (1, 234)),
        (" 5", 5),
        ("5 or 6", 5),
        ("0 and older", 0),
        ("1 < 2 < 2", False),
        ("['a' 'b', *['c'], 'd' + 'e']", ["ab", "c", "de"]),
        ("{'pear', 'apple', 'pear'}", ["pear", "apple"]),
        ("{'a': [None, -1.5]}", {"a": [None, -1.5]}),
        ("'\\d'", "\\d"),
        ("max", "<built-in max>"),
    )
    def test_value(self, text, expected):
        self.assertEqual(literals.parse(text), expected)

    @parameterized.parameters(
        "__import__('os').getpid()",
        "().__class__",
        "[x for x in [1]]",
        "(lambda: 1)()",
        "f'{1}'",
        "'a' * 10**9",
        "'%999999999d' % 1",
        "9**9**9",
        "1 << 9**6",
        "1/0",
        "apple",
        "2020-05-01",
        "[1, 2",
        "",
        "5\0",
        "{**{}}",
        "\ud800",
        "(" * 5000,
        "-" * 9000 + "5",
        "1" * 20_000,
    )
    def test_anything_else_is_refused(self, text):
        with self.assertRaises(literals.NotALiteralError):
            literals.parse(text)


if __name__ == "__main__":
    absltest.main()
