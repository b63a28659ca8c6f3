"""The stand-ins refuse what the real packages refuse or silently get wrong."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytestmark = pytest.mark.stand_in

X = torch.ones(3)


class Adds(nn.Module):
    """Accumulates its inputs in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(3))
        self.weight = nn.Parameter(torch.full((3,), 2.0), requires_grad=False)

    def forward(self, x: Tensor) -> Any:
        self.total = self.total + self.weight * x
        return self.total.sum()


class InPlace(Adds):
    def forward(self, x: Tensor) -> Any:
        self.total.add_(x)
        return self.total.sum()


class IntoAParameter(Adds):
    def forward(self, x: Tensor) -> Any:
        self.weight = nn.Parameter(self.weight + x, requires_grad=False)
        return self.weight.sum()


class IntoAParameterInPlace(Adds):
    def forward(self, x: Tensor) -> Any:
        self.weight.add_(x)
        return self.weight.sum()


class OfAnotherShape(Adds):
    def forward(self, x: Tensor) -> Any:
        self.total = torch.cat([self.total, x])
        return self.total.sum()


class OpenEnded(Adds):
    def forward(self, *inputs: Tensor) -> Any:
        return super().forward(inputs[0])


class ByDefault(Adds):
    def forward(self, x: Tensor, scale: float = 2.0) -> Any:
        return super().forward(x)


class FromData(Adds):
    def forward(self, x: Tensor) -> Any:
        self.total = self.total + x
        return x[x > 0]


class Branches(Adds):
    def forward(self, x: Tensor) -> Any:
        self.total = self.total + x
        return x if x.sum() > 0 else -x


class Sorts(Adds):
    def forward(self, x: Tensor) -> Any:
        self.total = self.total + x
        return x.sort()[0]


class Narrow(Adds):
    def forward(self, x: Tensor) -> Any:
        if x.shape[0] == 3:
            return super().forward(x)
        return x.sum() * self.weight[0]


class Optional(Adds):
    def forward(self, x: Tensor, y: Tensor | None = None) -> Any:
        if y is None:
            return super().forward(x)
        self.total = self.total + self.weight * y - 1
        return self.total.sum(), 3 * y


def model_of(module: nn.Module, *inputs: Any) -> Any:
    """*module* traced by NxD with each of these inputs, or shapes of x, and started."""
    from neuronx_distributed import ModelBuilder

    builder = ModelBuilder(module)
    for number, given in enumerate(inputs or (3,)):
        kwargs = given if isinstance(given, dict) else {"x": torch.ones(given)}
        builder.trace(kwargs=kwargs, tag=f"program_{number}")
    model = builder.compile()
    model.set_weights([{"weight": torch.full((3,), 2.0)}])
    model.to_neuron()
    return model


class TestModelBuilder:
    def test_keeps_reassigned_buffers(self):
        """Between calls, on the device."""
        model = model_of(Adds())

        assert [6.0, 12.0, 18.0] == [model(x=X).item() for _ in range(3)]
        assert [6.0, 6.0, 6.0] == model.read_from_neuron_buffer("total", 0).tolist()

    def test_leaves_the_module_as_it_was(self):
        """Tracing does not run it."""
        module = Adds()

        model_of(module)

        assert [0.0, 0.0, 0.0] == module.total.tolist()

    @pytest.mark.parametrize(
        ("module", "message"),
        [
            (InPlace(), "updated out of place: got a write in place into total"),
            (IntoAParameter(), "states must be buffers: got the parameter weight"),
            (IntoAParameterInPlace(), "updated out of place: got a write in place into weight"),
            (OfAnotherShape(), "keep shape and dtype: got another total"),
            (FromData(), "no XLA lowering for aten::nonzero"),
            (Branches(), "no XLA lowering for aten::_local_scalar_dense"),
            (Sorts(), "NCC_EVRF029"),
        ],
        ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
    )
    def test_refuses(self, module, message):
        """Modules that the reference documents as unsupported."""
        with pytest.raises(RuntimeError, match=message):
            model_of(module)

    @pytest.mark.parametrize(
        ("module", "error"), [(OpenEnded(), NotImplementedError), (ByDefault(), ValueError)]
    )
    def test_refuses_signatures(self, module, error):
        """Inputs need names and no defaults."""
        with pytest.raises(error):
            model_of(module)

    def test_routes_by_the_inputs_of_tracing(self):
        """An optional input makes two programs, over one state and with different results."""
        model = model_of(Optional(), {"x": X}, {"x": X, "y": X})

        assert 6.0 == model(x=X).item()
        total, scaled = model(x=X, y=X)
        assert ([9.0], [3.0, 3.0, 3.0]) == ([total.item()], scaled.tolist())
        with pytest.raises(AssertionError, match="traced signature"):
            model(x=X, z=X)
        with pytest.raises(AssertionError, match="traced signature"):
            model(y=X)

    def test_does_not_route_between_programs_of_equal_inputs(self):
        """Their name is required."""
        from neuronx_distributed import ModelBuilder

        builder = ModelBuilder(Adds())
        model = builder.trace(kwargs={"x": X}, tag="one").trace(kwargs={"x": X}, tag="two").compile()
        model.set_weights([{"weight": torch.full((3,), 2.0)}])
        model.to_neuron()

        with pytest.raises(AssertionError, match="2 possible routes"):
            model(x=X)
        assert 6.0 == model(x=X, model_name="two").item()

    def test_leaves_ranked_outputs_on_the_device(self):
        """As a list of outputs, each a list of ranks."""
        model = model_of(Optional(), {"x": X, "y": X})

        total, scaled = model(x=[X], y=[X], forward_mode="ranked")

        assert ["xla", "xla"] == [outputs[0].device.type for outputs in (total, scaled)]
        assert [3.0, 3.0, 3.0] == scaled[0].cpu().tolist()
        with pytest.raises(ValueError, match="each rank"):
            model(x=[], y=[X], forward_mode="ranked")

    def test_refuses_programs_of_different_states(self):
        """The states are those of the first program; another would write to the wrong memory."""
        with pytest.raises(RuntimeError, match="must have the states of the first"):
            model_of(Narrow(), 3, 2)

    def test_refuses_shapes_that_were_not_traced(self):
        """The router has no such key."""
        with pytest.raises(KeyError):
            model_of(Adds())(x=torch.ones(2))

    def test_refuses_dtypes_that_were_not_traced(self):
        """Memory would be misinterpreted."""
        with pytest.raises(RuntimeError, match="as they were traced"):
            model_of(Adds())(x=torch.ones(3, dtype=torch.int64))

    def test_refuses_to_run_without_weights(self):
        """The message names all of them."""
        from neuronx_distributed import ModelBuilder

        model = ModelBuilder(Adds()).trace(kwargs={"x": X}, tag="one").compile()
        with pytest.raises(RuntimeError, match="not initialized"):
            model(x=X)
        model.set_weights([{}])

        with pytest.raises(KeyError, match="weight"):
            model.to_neuron()


class Returns(nn.Module):
    """A module for torch_neuronx.trace: the state is a parameter and an output."""

    def __init__(self) -> None:
        super().__init__()
        self.total = nn.Parameter(torch.zeros(3), requires_grad=False)

    def forward(self, x: Tensor) -> Any:
        total = self.total + x
        return total.sum(), total


def traced(module: nn.Module, *inputs: Tensor, **aliases: int) -> Any:
    """*module* traced by torch_neuronx, with these aliases."""
    import torch_neuronx

    named = {getattr(module, name): index for name, index in aliases.items()}
    return torch_neuronx.trace(module, inputs, input_output_aliases=named, inline_weights_to_neff=False)


class TestTrace:
    def test_keeps_aliased_outputs(self):
        """And does not return them."""
        import torch_neuronx

        program = traced(Returns(), X, total=1)
        torch_neuronx.move_trace_to_device(program, 0)

        assert [3.0, 6.0, 9.0] == [program(X).item() for _ in range(3)]

    def test_refuses_shapes_that_were_not_traced(self):
        """An error, as AWS documents."""
        import torch_neuronx

        program = traced(Returns(), X, total=1)
        torch_neuronx.move_trace_to_device(program, 0)

        with pytest.raises(RuntimeError, match="as they were traced"):
            program(torch.ones(2))

    def test_refuses_weights_on_the_host(self):
        """The real package copies them at every call."""
        with pytest.raises(RuntimeError, match="must be moved to the device"):
            traced(Returns(), X, total=1)(X)

    def test_refuses_states_that_are_not_the_modules(self):
        """An alias must be a tensor of the module."""
        import torch_neuronx

        with pytest.raises(ValueError, match="parameters or buffers"):
            torch_neuronx.trace(
                Returns(), X, input_output_aliases={torch.zeros(3): 1}, inline_weights_to_neff=False
            )

    def test_refuses_an_output_unlike_its_state(self):
        """It cannot be aliased to it."""
        with pytest.raises(RuntimeError, match="output 0 must have the shape and dtype of total"):
            traced(Returns(), X, total=0)
