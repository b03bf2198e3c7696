"""Reads the value of a Python literal or of small arithmetic, without evaluating code.

The official scorers hand the model's text to Python's `eval`. What they compute from harmless
text is computed here from the parsed source, node by node: constants, lists, tuples, sets,
dicts, signs, arithmetic of numbers, comparisons. Anything else is refused.
"""

import ast
import builtins
import operator
import warnings

LONGEST_SOURCE = 10_000
DEEPEST_NESTING = 200
# No integer that is computed may need more bits; far above any answer, far below any harm.
LARGEST_INTEGER_BITS = 4096

_BINARY = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
}
_UNARY = {
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
    ast.Invert: operator.invert,
    ast.Not: operator.not_,
}
_COMPARE = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_NUMBER = (bool, int, float, complex)


class NotALiteralError(ValueError):
    """The text is no literal and no small arithmetic."""


def _bits(number: object) -> int:
    return number.bit_length() if isinstance(number, int) else 1


def _binary(node: ast.BinOp, depth: int) -> object:
    left, right = _value(node.left, depth), _value(node.right, depth)
    if isinstance(node.op, ast.Add) and type(left) is type(right) in (str, list, tuple):
        return left + right
    if type(node.op) not in _BINARY or not (
        isinstance(left, _NUMBER) and isinstance(right, _NUMBER)
    ):
        raise NotALiteralError(f"{type(node.op).__name__} is only done on two numbers")
    bits = _bits(left) + _bits(right)
    if isinstance(node.op, ast.Pow) and isinstance(left, int) and isinstance(right, int):
        bits = _bits(left) * max(right, 1)
    if bits > LARGEST_INTEGER_BITS:
        raise NotALiteralError(f"the result may need {bits} bits")
    return _BINARY[type(node.op)](left, right)


def _comparison(node: ast.Compare, depth: int) -> bool:
    values = [_value(child, depth) for child in (node.left, *node.comparators)]
    if not all(type(op) in _COMPARE for op in node.ops):
        raise NotALiteralError("only the six orderings are compared")
    pairs = zip(node.ops, values, values[1:], strict=False)
    return all(_COMPARE[type(op)](left, right) for op, left, right in pairs)


def _items(nodes: list[ast.expr], depth: int) -> list:
    items = []
    for node in nodes:
        if isinstance(node, ast.Starred):
            items += _value(node.value, depth)
        else:
            items.append(_value(node, depth))
    return items


def _value(node: ast.expr, depth: int) -> object:
    if depth > DEEPEST_NESTING:
        raise NotALiteralError(f"nested deeper than {DEEPEST_NESTING}")
    depth += 1
    match node:
        case ast.Constant():
            return node.value
        case ast.List():
            return _items(node.elts, depth)
        case ast.Tuple():
            return tuple(_items(node.elts, depth))
        case ast.Set():
            # Python's order of strings in a set differs from run to run; the source's does not.
            return list(dict.fromkeys(_items(node.elts, depth)))
        case ast.Dict() if None not in node.keys:
            keys, values = _items(node.keys, depth), _items(node.values, depth)
            return dict(zip(keys, values, strict=True))
        case ast.UnaryOp():
            return _UNARY[type(node.op)](_value(node.operand, depth))
        case ast.BoolOp():
            for child in node.values:
                value = _value(child, depth)
                if bool(value) == isinstance(node.op, ast.Or):
                    break
            return value
        case ast.BinOp():
            return _binary(node, depth)
        case ast.Compare():
            return _comparison(node, depth)
        case ast.Name():
            if hasattr(builtins, node.id):
                # The official scorers meet the function or class itself, which as text equals
                # no answer.
                return f"<built-in {node.id}>"
            raise NotALiteralError(f"name {node.id!r} is not defined")
    raise NotALiteralError(f"{type(node).__name__} is not evaluated")


def parse(text: str) -> object:
    """The value of `text` read as Python, a set as a list in the order of the source.

    Names of Python's builtins give a text that equals no answer. Integers beyond
    `LARGEST_INTEGER_BITS` are not computed.

    Raises:
      NotALiteralError: `text` is anything else; the message says what was met.
    """
    if len(text) > LONGEST_SOURCE:
        raise NotALiteralError(f"{len(text):,} characters, expected at most {LONGEST_SOURCE:,}")
    try:
        with warnings.catch_warnings():
            # Odd escapes in a model's text are no concern of whoever runs the scorer.
            warnings.simplefilter("ignore")
            return _value(ast.parse(text.lstrip(" \t"), mode="eval").body, 0)
    except NotALiteralError:
        raise
    except SyntaxError as error:
        raise NotALiteralError(f"not Python ({error.msg})") from error
    except (ArithmeticError, TypeError, ValueError, RecursionError, MemoryError) as error:
        raise NotALiteralError(f"{type(error).__name__}: {error}") from error
