# SPDX-License-Identifier: Apache-2.0
"""The formats that are known: one entry each, the stricter before the looser.

A text is read by the first entry that fits, and what one has read, no later one reads again.
"""

from __future__ import annotations

from depcache.recognition.recogniser import Recogniser

_N = r"[ \t]*\r?\n"  # the end of a line
_BLANK = rf"(?:{_N}){{0,3}}"
_LINE = r"[^\r\n]"
_TITLE = r"#{1,4} (?:[A-Za-z]++ ){0,2}"
_TITLE_OF_EDGES = rf"{_TITLE}(?:Facts|Edges|Paths|Triples|Connections|Relations(?:hips)?)"

# Words in small letters, so that no name of an entity is in what rows hang below.
_WORDS = r"[A-Za-z]?[a-z]*+(?: [a-z]++){0,9}"
_FACTS = rf"(?:[A-Za-z][a-z]*+ (?:[a-z]++ ){{0,8}}?)?[Ff]acts(?: [a-z]++){{0,10}}:{_N}{_BLANK}"
_LABEL = rf"{_WORDS}:{_N}{_BLANK}"

# A line of a log or of source code, whatever arrows it holds.
_NO_CODE = (
    r"(?! {4}|\t)"
    r"(?![ \t]*[\[(<]?(?:\d{4}[-/]\d\d[-/]|\d\d?:\d\d|\d\d?/\w{3}/))"
    r"(?![ \t]*+(?:[|\\$>+\[]|#[ \t]|\(\(|//|\d+[.)] ))"
    r"(?![ \t]*+(?:let |val |fun |fn |def |case |return |type |external ))"
    r"(?![^\r\n]*(?:::|=>|:=| : | = | // |[{}\\`]|;[ \t\r]*(?:\n|\Z)|\([^()\r\n]*->"
    r"|\b(?:INFO|DEBUG|WARN|WARNING|ERROR|TRACE)\b))"
)
_NO_CYPHER = (
    r"(?![ \t]*(?:\([^()\r\n]*\) ?<?-|(?:OPTIONAL|MATCH|MERGE|CREATE|RETURN|WHERE|WITH)\b))"
)

_TO_ARROW = r"[^>\r\n]{2,}+(?<= -)> (?=\S)"
_RELATION = r"\[[^\]\r\n]{1,200}+\]"
_BRACKET_ARROW = rf"(?:(?<=[-—]){_RELATION}(?:-{{1,2}}>|→)|(?<=<-){_RELATION}-)"
_QUOTED = r"(?:'[^'\r\n]++'|\"[^\"\r\n]++\")"
_CELL = r'(?:"(?:[^"]++|"")*+"|[^|\r\n]*+)'
_STRING = r'"(?:[^"\\\r\n]++|\\.)*+"'
_OBJECT_REST = rf'(?:{_STRING}|[^{{}}"\r\n]++|\{{[^{{}}\r\n]*+\}})*+\}}'
FACT_KEYS = (
    "fact|entity|entity_name|entity1|head|subject|source|src_id|relation|predicate|community_name"
)
_REPR_REST = r"(?:[^{}\r\n]++|\{[^{}\r\n]*+\})*+\}"
_JSON_FENCE = rf"(?:[^\r\n?`]{{1,400}}:{_N}{_BLANK})?```json(?:l|lines)?{_N}"
_HINT = r"(?:(?<=<context>\n)|(?<=<context>\r\n))[^\r\n]{1,300}\r?\n---\r?\n"
_RULED = rf"-{{3,}}[^\r\n]{{1,60}}-{{3,}}{_N}"

FORMATS: tuple[Recogniser, ...] = (
    Recogniser(
        name="json-entities",
        mark='"entity": ',
        row=rf'(?P<id>\{{"id": [^,\r\n]{{1,20}}, )?(?(id)|\{{)"entity": {_LINE}*+(?<=\}})',
        kind="entity",
        section=_JSON_FENCE,
        volatile=("id",),
        fences=("json", "jsonl", "jsonlines"),
        spelling='{"entity": "A", "description": ...}',
        since="LightRAG 1.5",
    ),
    Recogniser(
        name="json-relations",
        mark='"entity1": ',
        row=rf'(?P<id>\{{"id": [^,\r\n]{{1,20}}, )?(?(id)|\{{)"entity1": {_LINE}*+(?<=\}})',
        kind="relation",
        section=_JSON_FENCE,
        volatile=("id",),
        fences=("json", "jsonl", "jsonlines"),
        spelling='{"entity1": "A", "entity2": "B", ...}',
        since="LightRAG 1.5",
    ),
    Recogniser(
        name="json-chunks",
        mark='{"reference_id": ',
        row=rf'(?P<id>\{{"reference_id": [^,\r\n]{{1,20}}, )"content": {_LINE}*+(?<=\}})',
        kind="passage",
        section=_JSON_FENCE,
        volatile=("id",),
        fences=("json", "jsonl", "jsonlines"),
        spelling='{"reference_id": 1, "content": ...}',
        since="LightRAG 1.5",
    ),
    Recogniser(
        name="numbered-csv",
        mark=",\t",
        # A quoted text may go on for several lines, up to the next number or the end of the fence.
        row=r"(?P<number>\d{1,9},[ \t]*+)[^\n]++(?:\n(?!\d{1,9},[ \t]|[ \t]*```)[^\n]*+)*+",
        kind="record",
        section=rf"(?:{_RULED}{_BLANK})?```csv{_N}\"?id\"?,[ \t]*+\"?"
        rf"(?:entity|source|content|title)\b{_LINE}*+\r?\n",
        volatile=("number",),
        fences=("csv",),
        spelling='0, "A", "B", ...',
        since="nano-graphrag 0.0.8",
    ),
    Recogniser(
        name="pipe-relations",
        mark="|",
        row=rf"\d{{1,9}}\|(?:{_CELL}\|)++(?P<links>\d++)",
        kind="relation",
        section=rf"{_RULED}id\|source\|target\|(?:[a-z_ ]++\|)*+links{_N}",
        volatile=("links",),
        spelling="id|source|target|description|links",
        since="MS GraphRAG 3.3",
    ),
    Recogniser(
        name="pipe-rows",
        mark="|",
        row=rf"\d{{1,9}}(?:\|{_CELL})++",
        kind="record",
        section=rf"{_RULED}id\|[a-z_ |]++{_N}",
        spelling="id|entity|description",
        since="MS GraphRAG 3.3",
    ),
    Recogniser(
        name="tab-rows",
        mark="\t",
        row=r"(?!(?:name|entity|source)\t)[^\t\r\n]++\t[^\t\r\n]++(?:\t[^\t\r\n]++)?",
        kind="record",
        section=rf"(?:(?:{_TITLE_OF_EDGES}|{_TITLE}Entities){_N}{_BLANK})?(?:```(?:csv|tsv){_N})?"
        rf"(?:name|entity|source\ttarget)\tdescription{_N}",
        fences=("csv", "tsv"),
        spelling="source<tab>target<tab>description",
        since="fast-graphrag 0.0.5",
    ),
    Recogniser(
        name="ruled-sources",
        mark="]  ",
        row=r"(?P<number>\[\d{1,6}\] {1,4})[^\n]++(?:\n(?!=====|\[\d{1,6}\] )[^\n]*+)*+\n=====",
        kind="passage",
        section=rf"{_TITLE}[Ss]ources{_N}{_BLANK}",
        volatile=("number",),
        spelling="[1]  text, a line of =====",
        since="fast-graphrag 0.0.5",
    ),
    Recogniser(
        name="node-blocks",
        mark="Node: ",
        row=r"Node: [^\n]{1,500}\n__node_content_start__[ \t]*\r?\n"
        r"(?:(?!__node_content_(?:start|end)__)[^\n]*+\n)*+__node_content_end__",
        kind="entity",
        section=rf"Nodes:{_N}",
        bare=True,
        spelling="Node: A, its text between two lines",
        since="cognee 1.6",
    ),
    Recogniser(
        name="repr-arrows",
        mark=" ===\\n",
        skip=6,
        row=r"(?:(?! - [A-Z]|['\"]>)[^\\=\r\n])++ - [A-Z][A-Z0-9_]*+"
        r"(?:(?! -> |['\"]>)[^\\\r\n])*+ -> (?:[^\\'\"\r\n]++|['\"](?!>))++"
        r"(?P<separator>\\n(?:---\\n)?)?",
        kind="relation",
        section=r"=== [^=\\\r\n]{1,40} ===\\n",
        volatile=("separator",),
        item=True,
        lead=r"<Record [^\r\n]++",
        spelling="A - RELATION -> B",
        since="neo4j-graphrag 1.22",
    ),
    Recogniser(
        name="records",
        mark="<Record ",
        row=rf"<Record {_LINE}{{3,}}+(?<=>)",
        kind="record",
        bare=True,
        spelling="<Record ...>",
        since="neo4j-graphrag 1.22",
    ),
    Recogniser(
        name="dicts",
        mark="[{'",
        skip=1,
        row=rf"\{{'(?={_LINE}{{1,200}}?': ){_REPR_REST}(?P<separator>, (?=\{{'))?",
        kind="record",
        section=rf"(?:{_LABEL}|\A\s*+)\[",
        volatile=("separator",),
        item=True,
        close=r"\][ \t]*+(?:\r?\n|\Z)",
        spelling="[{'a': 'A', 'r': 'R'}, ...]",
        since="langchain-neo4j 0.11",
    ),
    Recogniser(
        name="json-array",
        mark='[{"',
        skip=1,
        row=rf'\{{"(?:{FACT_KEYS})": ?{_OBJECT_REST}(?P<separator>, ?(?=\{{))?',
        kind="record",
        section=rf"(?:[ \t]*+<[A-Z_]{{2,40}}>\s{{0,200}}+|{_LABEL}|\A\s*+)\[",
        volatile=("separator",),
        item=True,
        close=r"\][ \t]*+(?:\r?\n|\Z)",
        spelling='[{"fact": ...}, ...]',
        since="graphiti-core 0.31",
    ),
    Recogniser(
        name="bracket-arrows",
        mark="[",
        row=rf"{_NO_CYPHER}[^\[\]\r\n]{{2,}}+{_BRACKET_ARROW} ?[^\s(>]{_LINE}*+",
        kind="relation",
        section=rf"(?:{_TITLE_OF_EDGES}|Connections:){_N}",
        bare=True,
        lead=_HINT,
        spelling="A -[relation]-> B",
        since="cognee 1.6, graphrag-sdk 1.4",
    ),
    Recogniser(
        name="titled-entities",
        mark="- ",
        row=rf"- [^\s:][^:\r\n]{{0,300}}+: {_LINE}++",
        kind="entity",
        section=rf"{_TITLE}Entities{_N}",
        lead=_HINT,
        spelling="- A: description",
        since="graphrag-sdk 1.4",
    ),
    Recogniser(
        name="titled-passages",
        mark="assages",
        skip=7,
        row=r"(?!---[ \t]*\r?\n|</context>|#)[^\n]*+\n(?:(?!---[ \t]*\r?\n|</context>)[^\n]*+\n)*+"
        r"(?P<separator>---[ \t]*\r?\n(?!</context>))?",
        kind="passage",
        section=rf"{_TITLE}[Pp]assages{_N}",
        volatile=("separator",),
        item=True,
        close=r"</context>",
        lead=_HINT,
        spelling="text, a line of ---",
        since="graphrag-sdk 1.4",
    ),
    Recogniser(
        name="list-rows",
        mark=", ",
        # At least one in single quotes: else it is JSON.
        row=rf"\[(?={_LINE}*[\[ ]'[^'\r\n]*+'[,\]]){_QUOTED}(?:, {_QUOTED}, {_QUOTED})++\]",
        kind="relation",
        bare=True,
        spelling="['A', 'relation', 'B']",
        since="LlamaIndex 0.14",
    ),
    Recogniser(
        name="arrows",
        mark=" -> ",
        row=rf"{_NO_CODE}(?:{_TO_ARROW}{_TO_ARROW})++[^>\r\n]++",
        kind="relation",
        section=_FACTS,
        bare=True,
        passage=rf"(?:(?!-{{5,}}[ \t]*\r?\n|{_FACTS})[^\n]*+\n)++(?=-{{5,}}[ \t]*\r?\n|{_FACTS})",
        spelling="A -> relation -> B",
        since="LlamaIndex 0.14",
    ),
    Recogniser(
        name="wikipedia-passages",
        mark="Wikipedia Title: ",
        row=r"Wikipedia Title: [^\n]++"
        r"(?:\n(?![ \t\r]*(?:\n|\Z)|Wikipedia Title: |Question:|Query:)[^\n]++)*+",
        kind="passage",
        bare=True,
        spelling="Wikipedia Title: ...",
        since="HippoRAG 2.0",
    ),
    Recogniser(
        name="fact-bullets",
        mark="- ",
        row=r"- (?:[^(\r\n]++|\((?!score|similarity))++"
        rf"(?P<score>\((?:score|similarity){_LINE}{{0,40}}+)?",
        kind="relation",
        section=_FACTS,
        volatile=("score",),
        spelling="- A relation B.",
        since="graphiti-core 0.31",
    ),
)
"""All recognisers, in the order in which they are tried."""
