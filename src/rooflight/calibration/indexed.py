"""Rows and elements by their places: embeddings, and what is taken, put and added by an index."""

from __future__ import annotations

from functools import partial

import torch

from rooflight.calibration.case import Call, Cases, TensorPool, case
from rooflight.calibration.elements import half_each
from rooflight.calibration.sampling import is_power_of_two, points, unusual, whole
from rooflight.ops.kernel_task import FAMILIES, Task

aten = torch.ops.aten
INDEXED = ("index", "gather", "index-put", "index-add", "scatter-add")


def embedding_cases(family: str, seed: int, largest: int) -> Cases:
    for u in points(4, seed):
        rows, columns = whole(u[0], 1, 131072), whole(u[1], 16, 8192, 8)
        vocabulary = whole(u[3], 64, 150000)
        if max(rows, vocabulary) * columns > largest or (is_power_of_two(rows) and columns % 64 == 0):
            continue  # too much, or the tokens of a batch that is decoded
        numbers = (rows, columns) if family.endswith("forward") else (rows, columns, vocabulary)
        yield case(_embedding, Task(family, half_each(u[2]), numbers), vocabulary)


def _embedding(task: Task, vocabulary: int, pool: TensorPool) -> Call:
    rows, columns = task.numbers[:2]
    take = pool.taking(task.precision)
    indices = torch.randint(0, vocabulary, (rows,), device=pool.device)
    if task.family.endswith("forward"):
        return partial(aten.embedding, take(vocabulary, columns), indices)
    return partial(aten.embedding_dense_backward, take(rows, columns), indices, vocabulary, -1, False)


def indexed_cases(family: str, seed: int, largest: int) -> Cases:
    """Rows of a table by their numbers, as messages along the edges of a graph: long, and of any width. Elements by a
    number of their own each have rows as their numbers, too."""
    for u in points(4, seed):
        columns = whole(u[1], 1, 1024, 1 if u[2] * 10 % 1 < 0.3 else 8)
        rows, vocabulary = unusual(whole(u[0], 16, 1 << 21)), unusual(whole(u[3], 16, 1 << 20))
        if max(rows, vocabulary) * columns <= largest // 2:
            numbers = (rows, columns, vocabulary)[: len(FAMILIES[family])]
            yield case(_indexed, Task(family, half_each(u[2]), numbers), vocabulary)


def _indexed(task: Task, vocabulary: int, pool: TensorPool) -> Call:
    rows, columns = task.numbers[:2]
    take = pool.taking(task.precision)
    table, places = take(vocabulary, columns), torch.randint(0, vocabulary, (rows,), device=pool.device)
    if task.family in ("gather", "scatter-add"):
        places = places[:, None].repeat(1, columns)
    if task.family == "embedding-forward":
        return partial(aten.index_select, table, 0, places)
    if task.family == "index":
        return partial(aten.index, table, [places])
    if task.family == "gather":
        return partial(aten.gather, table, 0, places)
    if task.family == "index-put":
        return partial(aten._index_put_impl_, table, [places], take(rows, columns), True)
    add = aten.index_add_ if task.family == "index-add" else aten.scatter_add_
    return partial(add, table, 0, places, take(rows, columns))
