# SPDX-License-Identifier: Apache-2.0
"""Source code in several languages, fenced or not, with arrows, brackets and bars."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from eval.recognise.ordinary_words import maybe, word, words


def _python(rng: Random) -> str:
    a, b, c = (word(rng) for _ in range(3))
    rows = "\n".join(f"    ['{word(rng)}', '{word(rng)}', '{word(rng)}']," for _ in range(4))
    return (
        f"def {a}(x: int) -> list[str]:\n    # {words(rng, 3)} -> {b} -> {c}\n    return x\n\n"
        f"def {b}(f: Callable[[int], str]) -> Callable[[str], int]: ...\n\nROWS = [\n{rows}\n]\n"
        f"print([{{'a': 1}}, {{'a': 2}}])\n>>> {c}()\n"
    )


def _javascript(rng: Random) -> str:
    return "\n".join(
        f"const {word(rng)} = (x) => ({word(rng)}) => {{ return [{{'a': 1}}, {{'b': 2}}]; }}\n"
        f"// {word(rng)} -> {word(rng)} -> {word(rng)}"
        for _ in range(5)
    )


def _haskell(rng: Random) -> str:
    return "\n".join(
        f"{word(rng)} :: Int -> [a] -> Maybe a\n{word(rng)} :: (a -> b) -> [a] -> [b]\n"
        f"{word(rng)} = \\x -> \\y -> x\ncase x of\n  Just y -> f y -> z"
        for _ in range(3)
    )


def _ocaml(rng: Random) -> str:
    return "\n".join(
        f"val {word(rng)} : int -> int -> int\nlet {word(rng)} = fun x -> fun y -> x\n"
        f"external {word(rng)} : t -> t -> t"
        for _ in range(4)
    )


def _rust(rng: Random) -> str:
    return "\n".join(
        f"fn {word(rng)}(f: impl Fn(i32) -> i32) -> i32 {{ match x {{ 1 => 2, _ => 3 }} }}"
        for _ in range(5)
    )


def _cpp(rng: Random) -> str:
    return "\n".join(
        f"node->{word(rng)}[i]->next = map[k]->{word(rng)};  // {word(rng)} -> {word(rng)} -> x\n"
        f"auto {word(rng)} = [](int a) -> int {{ return a; }};"
        for _ in range(5)
    )


def _java(rng: Random) -> str:
    return "\n".join(
        f"Function<A, Function<B, C>> {word(rng)} = a -> b -> a.{word(rng)}(b);\n"
        f'case {rng.randint(1, 9)} -> {word(rng)} -> "x";'
        for _ in range(4)
    )


def _sql(rng: Random) -> str:
    values = ",\n".join(f"('{word(rng)}', '{word(rng)}', '{word(rng)}')" for _ in range(4))
    return (
        f"SELECT a || '|' || b, c->'x'->'y' FROM {word(rng)} WHERE d ->> 'k' = '{word(rng)}';\n"
        f"INSERT INTO {word(rng)} VALUES\n{values};\n-- {word(rng)} -> {word(rng)} -> {word(rng)}"
    )


def _cypher(rng: Random) -> str:
    return "\n".join(
        f"MATCH (a:{word(rng).title()})-[r:KNOWS]->(b)\nMATCH (c) -[:IN]-> (d)\n"
        f"(a)-[r:OF]->(b)-[s:IS]->(c)\nRETURN a.{word(rng)}, type(r)"
        for _ in range(3)
    )


def _shell(rng: Random) -> str:
    return "\n".join(
        f"$ cat {word(rng)} | grep '{word(rng)}' | awk '{{print $1}}'\n"
        f"lrwxrwxrwx 1 root root {word(rng)} -> ../{word(rng)}\n# {word(rng)} -> {word(rng)} -> x"
        for _ in range(4)
    )


def _dot(rng: Random) -> str:
    edges = "\n".join(f"  {word(rng)} -> {word(rng)} -> {word(rng)};" for _ in range(5))
    return (
        f"digraph g {{\n{edges}\n}}\n\n"
        f"graph LR\n  A[{word(rng)}] --> B[{word(rng)}] --> C\n  B -->|x| D"
    )


def _html(rng: Random) -> str:
    return "\n".join(
        f"<li><a href='/{word(rng)}'>{words(rng, 2)}</a> -&gt; {word(rng)}</li>\n"
        f"<!-- {word(rng)} -->\n<Record id='{word(rng)}'/>"
        for _ in range(3)
    )


def _lisp(rng: Random) -> str:
    return "\n".join(
        f"(-> {word(rng)} (map inc) (filter odd?))\n(defn {word(rng)} [x] (->> x -> {word(rng)}))"
        for _ in range(4)
    )


def _fence(language: str, make: Callable[[Random], str]) -> Callable[[Random], str]:
    def made(rng: Random) -> str:
        code = make(rng)
        return f"```{language}\n{code}\n```" if maybe(rng) else code

    return made


CODE: dict[str, Callable[[Random], str]] = {
    "c++": _fence("cpp", _cpp),
    "cypher": _fence("cypher", _cypher),
    "dot": _fence("dot", _dot),
    "haskell": _fence("haskell", _haskell),
    "html": _fence("html", _html),
    "java": _fence("java", _java),
    "javascript": _fence("js", _javascript),
    "lisp": _fence("clojure", _lisp),
    "ocaml": _fence("ocaml", _ocaml),
    "python": _fence("python", _python),
    "rust": _fence("rust", _rust),
    "shell": _fence("sh", _shell),
    "sql": _fence("sql", _sql),
}
"""Language to a program in it."""
