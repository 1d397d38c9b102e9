"""One cluster for the tests of a process; every test gets it with its nodes idle and no jobs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.slurm import cluster


@pytest.fixture(scope="session")
def possible() -> None:
    reason = cluster.why_not()
    if reason is not None:
        pytest.skip(reason)


@pytest.fixture(scope="session")
def started_cluster(possible: None) -> Iterator[cluster.Cluster]:
    with cluster.running() as started:
        yield started


@pytest.fixture
def own_cluster(possible: None) -> Iterator[cluster.Cluster]:
    """For a test that leaves it in a state which nobody else should see."""
    with cluster.running() as started:
        yield started


@pytest.fixture
def slurm(started_cluster: cluster.Cluster) -> Iterator[cluster.Cluster]:
    yield started_cluster
    started_cluster.repair()
