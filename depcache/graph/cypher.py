# SPDX-License-Identifier: Apache-2.0
"""How a graph lies in FalkorDB, and the text of every query on it that takes names.

    (:Entity {key, name, aliases})-[:REL {name, rank, batch}]->(:Entity)
    (:DepCacheGraph {version})

Relations are a property and not a type, and every value travels as a query parameter: whatever
a name holds, Cypher included, the text of each query is the same. Entities are found by `key`,
a digest of the name: the index of FalkorDB 4.22 does not find a string that starts with a space
or is longer than 4,096 bytes, and MERGE then makes it a second time. `batch` tells the edges
that one call made from those that were there.
"""

# The first version is the time, so that a graph that was deleted and made again has another one.
_COUNT_CHANGE = """
WITH collect([head, tail]) AS changed
MERGE (g:DepCacheGraph {id: 0})
SET g.version = CASE
  WHEN size(changed) = 0 THEN coalesce(g.version, 0)
  WHEN coalesce(g.version, 0) = 0 THEN timestamp()
  ELSE g.version + 1 END
WITH changed UNWIND changed AS ends RETURN ends[0], ends[1]"""

ADD = (
    """
UNWIND $rows AS row
MERGE (h:Entity {key: row[0]}) ON CREATE SET h.name = row[1]
MERGE (t:Entity {key: row[3]}) ON CREATE SET t.name = row[4]
MERGE (h)-[r:REL {name: row[2]}]->(t) ON CREATE SET r.rank = row[5], r.batch = $batch
WITH h, r, t WHERE r.batch = $batch
WITH h.name AS head, t.name AS tail"""
    + _COUNT_CHANGE
)
REMOVE = (
    """
UNWIND $rows AS row
MATCH (h:Entity {key: row[0]}), (t:Entity {key: row[2]})
WITH h, t, row MATCH (h)-[r:REL {name: row[1]}]->(t)
WITH h.name AS head, t.name AS tail, r
DELETE r
WITH head, tail"""
    + _COUNT_CHANGE
)
REMOVE_LONELY = """
UNWIND $keys AS key
MATCH (e:Entity {key: key}) WHERE indegree(e) + outdegree(e) = 0 DELETE e"""
ADD_ALIASES = (
    """
UNWIND $rows AS row
MATCH (e:Entity {key: row[0]})
SET e.aliases = coalesce(e.aliases, []) + [a IN row[1] WHERE NOT a IN coalesce(e.aliases, [])]
WITH e.name AS head, e.name AS tail"""
    + _COUNT_CHANGE
)

DEGREES = """
UNWIND $keys AS key
MATCH (e:Entity {key: key}) RETURN key, indegree(e) + outdegree(e)"""
BY_DEGREE = """
MATCH (e:Entity)
RETURN e.name AS name, indegree(e) + outdegree(e) AS degree ORDER BY degree DESC, name"""
# The other end has neither label nor condition: with one, the planner would start from there.
# Not `collect(...)`: in FalkorDB's verbose answers a list is one string, not to be taken apart.
EDGES = """
UNWIND $keys AS key
MATCH (e:Entity {key: key})-[r:REL]->(o)
RETURN key, r.name AS relation, 1 AS is_forward, o.name AS other
UNION ALL
UNWIND $keys AS key
MATCH (e:Entity {key: key})<-[r:REL]-(o)
RETURN key, r.name AS relation, 0 AS is_forward, o.name AS other"""
# One direction of hubs. The inner LIMIT bounds the work, the outer one the answer.
_SAMPLE = """
UNWIND $keys AS key
MATCH (e:Entity {key: key})
CALL {
  WITH e MATCH %s
  WITH r, o LIMIT $scanned
  WITH r, o ORDER BY r.rank LIMIT $kept
  RETURN r.rank AS rank, r.name AS relation, o.name AS other
}
RETURN key, rank, relation, other"""
SAMPLE_FROM = _SAMPLE % "(e)-[r:REL]->(o)"
SAMPLE_TO = _SAMPLE % "(e)<-[r:REL]-(o) WHERE o <> e"
