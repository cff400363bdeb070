"""The mutants of a file: each is the file with one small change, made by an operator of cosmic-ray.

Used are one partner for each arithmetic operator, both neighbours of each comparison, and augmented
assignments, which cosmic-ray does not change. Not used are the removal of decorators (compiled code
would be interpreted) and the replacement of variables. Changes of annotations are left out, since
they are never executed, and so are changes that do not compile.
"""

import ast
import copy
import re
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

import parso
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.exceptions import CosmicRayTestingException
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators.operator import Operator
from cosmic_ray.operators.provider import OperatorProvider

PACKAGE = Path(__file__).parents[2] / "src" / "antiphase"

ARITHMETIC = (
    "Add_Sub", "Sub_Add", "Mul_Div", "Div_Mul", "FloorDiv_Mul", "Mod_FloorDiv", "Pow_Mul",
    "LShift_RShift", "RShift_LShift", "BitAnd_BitOr", "BitOr_BitAnd",
)  # fmt: skip
COMPARISONS = (
    "Lt_LtE", "Lt_GtE", "LtE_Lt", "LtE_Gt", "Gt_GtE", "Gt_LtE", "GtE_Gt", "GtE_Lt",
    "Eq_NotEq", "NotEq_Eq", "Is_IsNot", "IsNot_Is",
)  # fmt: skip
NAMES = [
    *(f"ReplaceBinaryOperator_{pair}" for pair in ARITHMETIC),
    *(f"ReplaceComparisonOperator_{pair}" for pair in COMPARISONS),
    "ReplaceUnaryOperator_USub_UAdd", "ReplaceUnaryOperator_Delete_Not", "AddNot",
    "ReplaceTrueWithFalse", "ReplaceFalseWithTrue", "ReplaceAndWithOr", "ReplaceOrWithAnd",
    "ReplaceBreakWithContinue", "ReplaceContinueWithBreak", "NumberReplacer",
    "ZeroIterationForLoop",
]  # fmt: skip


PARTNERS = {"+=": "-=", "-=": "+=", "*=": "/=", "/=": "*="}


class AugmentedAssignment(Operator):
    """``x += y`` to ``x -= y``, ``x *= y`` to ``x /= y``, and back."""

    def mutation_positions(self, node):
        if isinstance(node, parso.python.tree.Operator) and node.value in PARTNERS:
            yield node.start_pos, node.end_pos

    def mutate(self, node, index):
        node.value = PARTNERS[node.value]
        return node

    @classmethod
    def examples(cls):
        return ()


class ExceptionNotCaught(Operator):
    """One of the exceptions that a handler catches is replaced by one that nothing raises.

    The operator of cosmic-ray fails on dotted names.
    """

    def mutation_positions(self, node):
        if node.type == "except_clause":
            for name in self._names(node.children[1]):
                yield name.start_pos, name.end_pos

    def mutate(self, node, index):
        name = self._names(node.children[1])[index]
        if name.type != "name":  # a.B: nothing of it but the first word, which is replaced
            del name.children[1:]
            name = name.children[0]
        name.value = CosmicRayTestingException.__name__
        return node

    @staticmethod
    def _names(node):
        """The exceptions of ``except A``, ``except a.B`` and ``except (A, a.B)``."""
        nodes = [node]
        if node.type == "atom":
            inner = node.children[1]
            nodes = inner.children[::2] if inner.type == "testlist_comp" else [inner]
        return [n for n in nodes if n.type in ("name", "power", "atom_expr")]

    @classmethod
    def examples(cls):
        return ()


@dataclass(frozen=True)
class Mutant:
    file: str  # within the package
    line: int
    original: str  # the whole file
    source: str  # the whole file, changed

    @cached_property
    def _difference(self):
        return difference(self.original, self.source)

    @property
    def before(self):
        """The statement that is changed, however its lines are broken; of a block, its head."""
        return self._difference[0]

    @property
    def after(self):
        """The same statement, changed."""
        return self._difference[1]

    @property
    def name(self):
        """What it is known by, wherever in the file it stands."""
        return self.file, self.before, self.after


def mutants_of(file):
    """All mutants of a file of the package, in the order of its lines."""
    return mutants_in((PACKAGE / file).read_text(encoding="utf-8"), file)


def mutants_in(source, file):
    """All mutants of a source text; of those that are the same to the interpreter, one."""
    spans, provider = _never_executed(source), OperatorProvider()
    found = {_executed(source): None}
    for operator in (
        *(provider[name]() for name in NAMES),
        AugmentedAssignment(),
        ExceptionNotCaught(),
    ):
        for (line, column), mutated in _changed(source, operator):
            executed = _executed(mutated)
            if (
                executed is None
                or executed in found
                or any(first <= (line, column) < last for first, last in spans)
            ):
                continue
            found[executed] = Mutant(file, line, source, mutated)
    return sorted(filter(None, found.values()), key=lambda mutant: mutant.line)


def _changed(source, operator):
    """((line, column), source) for each place of the operator, parsed one definition at a time."""
    done, parts = "", [node.get_code() for node in get_ast(source).children]
    for number, part in enumerate(parts):
        positions = [
            start
            for node in ast_nodes(get_ast(part))
            for start, _ in operator.mutation_positions(node)
        ]
        for occurrence, (line, column) in enumerate(positions):
            mutated = mutate_code(part, operator, occurrence)
            yield (line + done.count("\n"), column), done + mutated + "".join(parts[number + 1 :])
        done += part


def fingerprint(code):
    """What a code object and those within it do, whatever the lines and columns they come from."""
    constants = tuple(
        fingerprint(c) if hasattr(c, "co_code") else (type(c), repr(c)) for c in code.co_consts
    )
    return (
        code.co_code,
        constants,
        code.co_names,
        code.co_varnames,
        code.co_freevars,
        code.co_exceptiontable,
    )


def _executed(source):
    try:
        return fingerprint(compile(source, "mutant", "exec"))
    except SyntaxError:
        return None


def _never_executed(source):
    """Where annotations begin and end, and the stars between arguments, which multiply nothing."""
    stars = [
        (n, m.start())
        for n, line in enumerate(source.split("\n"), 1)
        for m in re.finditer(r"\*,", line)
    ]
    notes = [
        getattr(node, name, None)
        for node in ast.walk(ast.parse(source))
        for name in ("annotation", "returns")
    ]
    spans = [
        ((n.lineno, n.col_offset), (n.end_lineno, n.end_col_offset)) for n in notes if n is not None
    ]
    return spans + [((line, column), (line, column + 1)) for line, column in stars]


_parsed = lru_cache(ast.parse)
BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")


def difference(source, mutated):
    """The innermost statement that differs, before and after, as `ast.unparse` writes it."""
    return _differing(_parsed(source), ast.parse(mutated))


def _differing(old, new):
    if head(old) == head(new):
        for block in BLOCKS:
            for one, other in zip(getattr(old, block, []), getattr(new, block, []), strict=True):
                if ast.dump(one) != ast.dump(other):
                    return _differing(one, other)
    return head(old), head(new)


def head(node):
    """A statement on one line; of one with blocks, what stands before them."""
    if isinstance(node, ast.Module):
        return ""
    bare = copy.copy(node)
    for block in BLOCKS:
        if isinstance(getattr(node, block, None), list):
            setattr(bare, block, [ast.Pass()] if block == "body" else [])
    if isinstance(node, ast.Try):
        return "try:"
    if isinstance(node, ast.Match):
        bare.cases = [ast.match_case(ast.MatchAs(), None, [ast.Pass()])]
    text = " ".join(ast.unparse(ast.fix_missing_locations(bare)).split())
    return text.removesuffix(" pass") if hasattr(node, "body") else text


def statements(source):
    """Every statement of a source text, by its `head`."""
    kinds = (ast.stmt, ast.ExceptHandler)
    return {head(node) for node in ast.walk(ast.parse(source)) if isinstance(node, kinds)}
