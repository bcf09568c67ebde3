"""Writes kubernetes.json, the schemas with which the tests compare the manifests:

    python kubernetes.py swagger.json >kubernetes.json

swagger.json is api/openapi-spec/swagger.json of a release of Kubernetes, 1.37 at present. Of it remain the definitions
that the manifests' objects need, without descriptions, under the Apache License 2.0 as there.
"""

import json
import sys

KINDS = ["core.v1.Service", "apps.v1.StatefulSet", "batch.v1.Job", "policy.v1.PodDisruptionBudget"]


def schema(node):
    """The node as a strict JSON schema: an object has no other fields, and IntOrString is what its name says."""
    if isinstance(node, list):
        return [schema(v) for v in node]
    if not isinstance(node, dict):
        return node
    kept = {
        k: schema(v)
        for k, v in node.items()
        if not k.startswith("x-kubernetes") and not (k == "description" and isinstance(v, str))
    }
    if isinstance(kept.get("properties"), dict):
        kept["additionalProperties"] = False
    if kept.pop("format", None) == "int-or-string":
        kept["type"] = ["integer", "string"]
    return kept


def references(node):
    """The names of the definitions that the node refers to."""
    if isinstance(node, list):
        for v in node:
            yield from references(v)
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"].rpartition("/")[2]
        for v in node.values():
            yield from references(v)


def main():
    definitions = json.load(open(sys.argv[1]))["definitions"]
    kept, todo = {}, [f"io.k8s.api.{kind}" for kind in KINDS]
    while todo:
        name = todo.pop()
        if name not in kept:
            kept[name] = schema(definitions[name])
            todo += references(kept[name])
    lines = [f"{json.dumps(k)}: {json.dumps(v, separators=(',', ':'))}" for k, v in sorted(kept.items())]
    print('{"definitions": {\n' + ",\n".join(lines) + "\n}}")


main()
