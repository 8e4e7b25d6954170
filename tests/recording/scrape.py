"""A policy to count for, and what a scrape of the metrics shows."""

from prometheus_client.parser import text_string_to_metric_families

from forebay.domain import Replica, Tenant
from forebay.policy import Model, Policy, Pool
from forebay.recording.metrics import Metrics

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def policy(
    models: tuple[str, ...] = ("m", "unused"), tenants: tuple[str, ...] = ("a", "b"), replicas: int = 2
) -> Policy:
    hosts = tuple(Replica(f"h:{port}", "h", port) for port in range(1, replicas + 1))
    return Policy(
        pools={"main": Pool("main", "vllm", hosts), "spare": Pool("spare", "vllm", hosts[:1])},
        models={name: Model(name, "main") for name in models},
        tenants={name.encode(): Tenant(name) for name in tenants},
    )


def samples(metrics: Metrics) -> Samples:
    """Every sample of a scrape by name and labels."""
    content_type, text = metrics.render()
    assert content_type == b"text/plain; version=0.0.4; charset=utf-8"
    found: Samples = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in found, f"{key} stands there twice"
            found[key] = sample.value
    return found


def value(metrics: Metrics, name: str, **labels: str) -> float:
    """One sample; a KeyError when it is not there, which is not the same as zero."""
    return samples(metrics)[(name, frozenset(labels.items()))]


def labels_of(metrics: Metrics, name: str) -> list[dict[str, str]]:
    """The labels of every sample of a name."""
    return [dict(labels) for found, labels in samples(metrics) if found == name]
