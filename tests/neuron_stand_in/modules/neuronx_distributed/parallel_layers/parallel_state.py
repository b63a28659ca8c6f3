"""Groups of cores."""

_groups: list[list[int]] = []


def initialize_model_parallel(world_size: int, tensor_model_parallel_size: int) -> None:
    """Only one group of all cores is emulated."""
    if _groups:
        raise AssertionError("tensor model parallel group is already initialized")
    if world_size != tensor_model_parallel_size:
        raise NotImplementedError(
            f"the stand-in has one group of all {world_size} cores: got {tensor_model_parallel_size}"
        )
    _groups.append(list(range(world_size)))


def destroy_model_parallel() -> None:
    """Leave the parallel state."""
    _groups.clear()


def tensor_model_parallel_groups() -> list[list[int]]:
    """Core numbers of each group."""
    assert _groups, "intra_layer_model parallel group is not initialized"
    return _groups
