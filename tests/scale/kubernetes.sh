#!/usr/bin/env bash
# Checks the manifest of integrations/kubernetes against the types of the Kubernetes client: unknown fields and wrong types
# fail. Nothing is run.
#
#   tests/scale/kubernetes.sh
source "$(dirname "$0")/common.sh"
environment kubernetes
exec python3 - "$root/integrations/kubernetes/job.yaml" <<'CHECK'
import re
import sys

import kubernetes
import yaml
from kubernetes.client import models

SIMPLE = {"str": str, "int": int, "bool": bool, "float": (int, float), "object": object, "datetime": str}


def check(value, kind, path):
    """Compares a value with the name of a type of the client."""
    if listed := re.fullmatch(r"list\[(.+)\]", kind):
        assert isinstance(value, list), f"{path}: expected a list"
        for i, item in enumerate(value):
            check(item, listed[1], f"{path}[{i}]")
    elif mapped := re.fullmatch(r"dict\((.+), (.+)\)", kind):
        for key, item in value.items():
            check(item, mapped[2], f"{path}.{key}")
    elif kind in SIMPLE:
        assert isinstance(value, SIMPLE[kind]), f"{path}: {value!r}, expected {kind}"
    else:
        model = getattr(models, kind)
        names = {json: name for name, json in model.attribute_map.items()}
        for key, item in value.items():
            assert key in names, f"{path}.{key}: unknown field of {kind}"
            check(item, model.openapi_types[names[key]], f"{path}.{key}")


documents = list(yaml.safe_load_all(open(sys.argv[1], encoding="utf-8")))
for document in documents:
    assert (document["apiVersion"], document["kind"]) == ("batch/v1", "Job")
    check(document, "V1Job", document["metadata"]["name"])
print(f"kubernetes {kubernetes.__version__}: {len(documents)} documents match the schema of batch/v1 Job")
CHECK
