"""param_groups and split_param_groups: which parameter trains with which layer, and that nothing else changes."""

import copy
import inspect
import io
from functools import partial
from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.optim import LBFGS, SGD, AdamW
from torch.optim.lr_scheduler import ChainedScheduler, CosineAnnealingLR, ExponentialLR, LambdaLR, SequentialLR, StepLR

from tempbalance import TempBalance, find_layers, param_groups, split_param_groups
from tempbalance.optim.param_groups import check_same_parameters
from tests.cases import raises, train_step
from tests.schedules import OPTIMIZERS, SCHEDULES, advance, hyperbola, rates_of, small_mlp, two_rates, wave

pytestmark = pytest.mark.filterwarnings("error")


class WithExtras(nn.Module):
    """A parameter that no layer owns, one tied weight, one frozen."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))
        self.embedding = nn.Embedding(11, 6)
        self.body = nn.Linear(6, 6)
        self.frozen = nn.Linear(6, 6)
        self.head = nn.Linear(6, 11)
        self.head.weight = self.embedding.weight
        self.frozen.weight.requires_grad_(False)


def cnn():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.Conv2d(8, 8, 3, groups=2), nn.Flatten(), nn.Linear(8, 4)
    )


MODELS = {
    "mlp": small_mlp,
    "cnn": cnn,
    "transformer": lambda: nn.TransformerEncoderLayer(16, 2, 32),
    "decoder": lambda: nn.TransformerDecoderLayer(16, 2, 32),
    "lstm": lambda: nn.LSTM(8, 12, num_layers=2, bidirectional=True),
    "gru": lambda: nn.GRU(8, 12),
    "extras": WithExtras,
    "norm_only": lambda: nn.LayerNorm(8),
    "one_linear": lambda: nn.Linear(8, 4),
}


def ids(params):
    return [id(each) for each in params]


def held(groups):
    """Each parameter of each group."""
    return [id(each) for group in groups for each in group["params"]]


def label_of(groups):
    return {id(each): group.get("layer") for group in groups for each in group["params"]}


# param_groups


@pytest.mark.parametrize("name", MODELS)
def test_every_trainable_parameter_is_in_exactly_one_group(name):
    model = MODELS[name]()
    groups = param_groups(model)
    assert sorted(held(groups)) == sorted(ids(each for each in model.parameters() if each.requires_grad))
    assert len({group.get("layer") for group in groups}) == len(groups)
    assert {group["layer"] for group in groups if "layer" in group} <= {layer.name for layer in find_layers(model)}
    optimizer = SGD(groups, lr=0.1)
    assert len(optimizer.param_groups) == len(groups)


@pytest.mark.parametrize("name", ["mlp", "lstm", "extras"])
@pytest.mark.parametrize(
    "wrap", [nn.DataParallel, partial(torch.compile, backend="eager")], ids=["parallel", "compiled"]
)
def test_a_wrapped_model_has_the_groups_of_the_bare_one(name, wrap):
    model = MODELS[name]()
    assert label_of(param_groups(wrap(model))) == label_of(param_groups(model))


def test_followers_are_with_their_layer():
    model = cnn()
    labels = label_of(param_groups(model))
    assert {labels[id(each)] for each in (model[0].weight, model[1].weight, model[1].bias)} == {"0"}
    assert {labels[id(each)] for each in model[2].parameters()} == {"2"}
    assert {labels[id(each)] for each in model[4].parameters()} == {"4"}


def test_what_belongs_to_no_layer_is_one_group_at_the_end():
    model = WithExtras()
    groups = param_groups(model)
    assert [group.get("layer") for group in groups][-1] is None
    assert ids(groups[-1]["params"]) == [id(model.scale)]
    assert label_of(groups)[id(model.head.bias)] == label_of(groups)[id(model.embedding.weight)] == "head"


@pytest.mark.parametrize("name", MODELS)
def test_splitting_twice_is_splitting_once(name):
    model = MODELS[name]()
    once = param_groups(model, [{"params": [*model.parameters()], "lr": 0.3}])
    twice = param_groups(model, once)
    assert [(each.get("layer"), each["lr"], ids(each["params"])) for each in twice] == [
        (each.get("layer"), each["lr"], ids(each["params"])) for each in once
    ]


FORMS = {
    "generator": lambda model: model.parameters(),
    "list": lambda model: [*model.parameters()],
    "named": lambda model: model.named_parameters(),
    "groups of generators": lambda model: [{"params": each.parameters()} for each in model],
    "generator of groups": lambda model: ({"params": each.parameters()} for each in model),
    "single tensors": lambda model: [{"params": each} for each in model.parameters()],
    "groups of named": lambda model: [{"params": model.named_parameters(), "lr": 0.2}],
    "one and rest": lambda model: [
        {"params": model[0].weight},
        {"params": [each for each in model.parameters() if each is not model[0].weight]},
    ],
}


@pytest.mark.parametrize("form", FORMS)
def test_groups_are_taken_in_each_form_that_optimizers_take(form):
    model = small_mlp()
    groups = param_groups(model, FORMS[form](model))
    optimizer = SGD(groups, lr=0.1)
    assert sorted(held(optimizer.param_groups)) == sorted(ids(model.parameters()))
    expected = label_of(param_groups(model))
    assert label_of(optimizer.param_groups) == expected


def test_names_of_parameters_stay_with_them():
    model = small_mlp()
    names = {id(each): name for name, each in model.named_parameters()}
    optimizer = SGD(param_groups(model, model.named_parameters()), lr=0.1)
    for group in optimizer.param_groups:
        assert group["param_names"] == [names[each] for each in ids(group["params"])]
    unsplit = SGD(model.named_parameters(), lr=0.1)
    split_param_groups(unsplit, model)
    assert len(unsplit.param_groups) == 5
    for group in unsplit.param_groups:
        assert group["param_names"] == [names[each] for each in ids(group["params"])]


def test_each_group_keeps_its_options():
    model = small_mlp()
    own = two_rates(model)
    own[1]["tag"] = "vectors"
    groups = param_groups(model, own)
    assert len(groups) == 10
    for group in groups:
        is_vector = group["params"][0].dim() < 2
        assert {each.dim() < 2 for each in group["params"]} == {is_vector}
        assert group["lr"] == (0.02 if is_vector else 0.1)
        assert group.get("weight_decay") == (0.0 if is_vector else None)
        assert group.get("tag") == ("vectors" if is_vector else None)
    assert [group["layer"] for group in groups] == ["0", "3", "6", "9", "12"] * 2


def test_the_groups_given_are_not_changed():
    model = small_mlp()
    own = two_rates(model)
    before = [(ids(group["params"]), sorted(group)) for group in own]
    param_groups(model, own)
    assert [(ids(group["params"]), sorted(group)) for group in own] == before


def test_parameters_outside_the_groups_stay_outside():
    model = small_mlp()
    matrices = [each for each in model.parameters() if each.dim() == 2]
    vectors = [each for each in model.parameters() if each.dim() < 2]
    assert sorted(held(param_groups(model, matrices))) == sorted(ids(matrices))
    assert sorted(held(param_groups(model, [{"params": vectors}]))) == sorted(ids(vectors))


def test_parameters_of_something_else_are_unlabelled():
    model, extra = small_mlp(), nn.Parameter(torch.zeros(2))
    groups = param_groups(model, [*model.parameters(), extra])
    assert ids(groups[-1]["params"]) == [id(extra)]
    assert "layer" not in groups[-1]


def test_frozen_parameters_are_left_out_unless_they_are_given():
    model = WithExtras()
    assert id(model.frozen.weight) not in held(param_groups(model))
    assert label_of(param_groups(model, model.parameters()))[id(model.frozen.weight)] == "frozen"


@pytest.mark.parametrize("label", ["body", 3, None, "0"])
def test_the_key_layer_used_for_something_else_is_refused(label):
    model = small_mlp()
    groups = [{"params": [*model.parameters()], "layer": label}]
    with raises(ValueError, "'layer'", repr(label)):
        param_groups(model, groups)
    optimizer = SGD(groups, lr=0.1)
    before = list(optimizer.param_groups)
    with raises(ValueError, "'layer'", repr(label)):
        split_param_groups(optimizer, model)
    assert all(now is then for now, then in zip(optimizer.param_groups, before, strict=True))


def test_groups_of_a_tensor_rate_get_one_each():
    model, rate = small_mlp(), torch.tensor(0.1)
    groups = param_groups(model, [{"params": [*model.parameters()], "lr": rate}])
    tensors = [group["lr"] for group in groups]
    assert len({id(each) for each in tensors}) == 5
    assert [float(each) for each in tensors] == [float(rate)] * 5


# small layers in one group


class Mixed(nn.Module):
    """Large and small layers in turn, with what follows them."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.large = nn.Linear(16, 12)
        self.large_norm = nn.LayerNorm(12)
        self.narrow = nn.Linear(12, 3)
        self.narrow_norm = nn.LayerNorm(3)
        self.wide = nn.Linear(3, 18)
        self.depthwise = nn.Conv1d(18, 18, 3, groups=18, padding=1)
        self.depthwise_norm = nn.BatchNorm1d(18)
        self.head = nn.Linear(18, 10)
        self.gain = nn.Parameter(torch.ones(10))

    def forward(self, x):
        x = torch.relu(self.large_norm(self.large(x)))
        x = self.wide(torch.relu(self.narrow_norm(self.narrow(x))))
        x = self.depthwise_norm(self.depthwise(x.unsqueeze(-1)))
        return self.head(torch.relu(x.squeeze(-1))) * self.gain


def names_in(model, groups):
    names = {id(each): name for name, each in model.named_parameters()}
    return [(group.get("layer"), [names[each] for each in ids(group["params"])]) for group in groups]


def test_layers_with_a_short_side_are_in_the_rest_with_their_followers():
    model = Mixed()
    assert names_in(model, param_groups(model, min_eigenvalues=10)) == [
        ("large", ["large.weight", "large.bias", "large_norm.weight", "large_norm.bias"]),
        ("head", ["head.weight", "head.bias"]),
        (
            None,
            [
                "gain",
                *("narrow.weight", "narrow.bias", "narrow_norm.weight", "narrow_norm.bias"),
                *("wide.weight", "wide.bias"),
                *("depthwise.weight", "depthwise.bias", "depthwise_norm.weight", "depthwise_norm.bias"),
            ],
        ),
    ]


SIDES = {
    "linear": (lambda: nn.Linear(9, 20), 9),
    "convolution": (lambda: nn.Conv2d(7, 12, 3), 7),
    "grouped": (lambda: nn.Conv2d(12, 24, 3, groups=4), 3),
    "depthwise": (lambda: nn.Conv2d(32, 32, 7, groups=32), 1),
    "transposed": (lambda: nn.ConvTranspose2d(12, 5, 3), 5),
    "experts": (lambda: nn.ParameterDict({"experts": torch.ones(40, 6, 11)}), 6),
    "attention": (lambda: nn.MultiheadAttention(8, 2), 8),
    "gates": (lambda: nn.LSTM(30, 5), 5),
}


@pytest.mark.parametrize("name", SIDES)
def test_the_limit_is_on_the_side_of_the_matrices(name):
    build, side = SIDES[name]
    model = nn.ModuleDict({"small": build(), "large": nn.Linear(64, 64)})
    at, above = (param_groups(model, min_eigenvalues=limit) for limit in (side, side + 1))
    assert label_of(at) == label_of(param_groups(model))
    assert {group.get("layer") for group in above} == {"large", None}


def test_each_weight_of_a_module_counts_by_its_own_side():
    model = nn.LSTM(5, 30)
    assert [group.get("layer") for group in param_groups(model, min_eigenvalues=20)] == ["weight_hh_l0", None]


def test_a_weight_of_unknown_shape_keeps_its_group():
    model = nn.Sequential(nn.LazyLinear(4), nn.Linear(4, 64), nn.Linear(64, 64))
    assert [group.get("layer") for group in param_groups(model, min_eigenvalues=32)] == ["0", "2", None]


def test_a_bias_of_a_tied_layer_goes_with_a_small_weight():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(64, 64))
    model[1].weight = model[0].weight
    assert names_in(model, param_groups(model, min_eigenvalues=32))[-1] == (
        None,
        ["0.weight", "0.bias", "1.bias"],
    )


def test_groups_with_options_have_a_rest_each():
    model = Mixed()
    groups = param_groups(model, two_rates(model), min_eigenvalues=10)
    assert [(group.get("layer"), group["lr"]) for group in groups] == [
        *(("large", 0.1), ("head", 0.1), (None, 0.1)),
        *(("large", 0.02), ("head", 0.02), (None, 0.02)),
    ]


def test_groups_that_are_labelled_already_keep_their_labels():
    model = Mixed()
    once = param_groups(model)
    assert names_in(model, param_groups(model, once, min_eigenvalues=10)) == names_in(model, once)


def test_a_model_of_small_layers_only_keeps_every_group():
    model = small_mlp()
    assert label_of(param_groups(model, min_eigenvalues=50)) == label_of(param_groups(model))
    optimizer = SGD(model.parameters(), lr=0.1)
    split_param_groups(optimizer, model, min_eigenvalues=50)
    with pytest.warns(UserWarning, match="no layer is scored"):
        TempBalance(optimizer, model, min_eigenvalues=50)


@pytest.mark.parametrize("value", [-1, 2.5, True, "50"])
def test_a_limit_that_is_no_count_is_refused_and_nothing_changes(value):
    model = Mixed()
    with raises(ValueError, "min_eigenvalues", repr(value)):
        param_groups(model, min_eigenvalues=value)
    optimizer = SGD(model.parameters(), lr=0.1)
    with raises(ValueError, "min_eigenvalues", repr(value)):
        split_param_groups(optimizer, model, min_eigenvalues=value)
    assert len(optimizer.param_groups) == 1


@pytest.mark.parametrize("kind", ["param_groups", "split_param_groups"])
@pytest.mark.parametrize("form", [{}, {"foreach": True}, {"foreach": False}, {"fused": True}], ids=str)
@pytest.mark.parametrize(
    "build", [partial(SGD, lr=0.05, momentum=0.9, weight_decay=5e-4), partial(AdamW, lr=0.01)], ids=["sgd", "adamw"]
)
def test_updates_do_not_depend_on_whether_small_layers_share_a_group(build, form, kind):
    trained = []
    for limit in (None, 0, 10):
        model = Mixed()
        if kind == "param_groups":
            groups = model.parameters() if limit is None else param_groups(model, min_eigenvalues=limit)
            optimizer = build(groups, **form)
        else:
            optimizer = build(model.parameters(), **form)
            if limit is not None:
                split_param_groups(optimizer, model, min_eigenvalues=limit)
        assert len(optimizer.param_groups) == {None: 1, 0: 6, 10: 3}[limit]
        for step in range(6):
            train_step(model, optimizer, torch.randn(8, 16, generator=torch.Generator().manual_seed(step)))
        trained.append(weights(model))
    assert not torch.equal(trained[0][0], next(Mixed().parameters()))
    for other in trained[1:]:
        assert all(map(torch.equal, trained[0], other))


def test_a_balanced_run_does_not_depend_on_whether_small_layers_share_a_group():
    trained, scales = [], []
    for limit in (0, 9):
        torch.manual_seed(1)
        sizes = (16, 12, 14, 4, 14, 9, 3)
        model = nn.Sequential(*(nn.Linear(*pair) for pair in pairwise(sizes)))
        optimizer = SGD(param_groups(model, min_eigenvalues=limit), lr=0.05, momentum=0.9)
        scheduler = TempBalance(optimizer, model, min_eigenvalues=9)
        for step in range(6):
            train_step(model, optimizer, torch.randn(8, 16, generator=torch.Generator().manual_seed(step)))
            scheduler.step()
        trained.append(weights(model))
        scales.append(scheduler.last_scales)
    assert scales[0] == scales[1]
    assert len(scales[0]) == 2
    assert all(map(torch.equal, *trained))


def test_a_scored_layer_without_a_group_is_reported_with_scale_1():
    model = nn.Sequential(nn.Linear(16, 14), nn.Linear(14, 12), nn.Linear(12, 8), nn.Linear(8, 12), nn.Linear(12, 16))
    optimizer = SGD(param_groups(model, min_eigenvalues=10), lr=0.1)
    table = TempBalance(optimizer, model, min_eigenvalues=5).table()
    for name in ("2", "3"):
        assert table[name].score is not None
        assert table[name].scale == 1.0
        assert table[name].reason
    assert not table["1"].reason


# options of TempBalance


OPTIONS = {
    function: sorted(inspect.signature(TempBalance).parameters.keys() - inspect.signature(function).parameters.keys())
    for function in (param_groups, split_param_groups)
}


@pytest.mark.parametrize(
    ("function", "option"), [(function, option) for function, options in OPTIONS.items() for option in options]
)
def test_an_option_of_the_scheduler_is_refused_with_whose_it_is(function, option):
    model = small_mlp()
    optimizer = SGD(model.parameters(), lr=0.1)
    arguments = (model,) if function is param_groups else (optimizer, model)
    with raises(TypeError, repr(option), f"{function.__name__}()", "TempBalance"):
        function(*arguments, **{option: None})
    assert len(optimizer.param_groups) == 1


@pytest.mark.parametrize("function", [param_groups, split_param_groups])
def test_any_other_keyword_is_refused_as_python_does(function):
    with pytest.raises(TypeError, match=f"{function.__name__}.* unexpected keyword argument 'colour'") as caught:
        function(small_mlp(), colour="red")
    assert "TempBalance" not in str(caught.value)


# split_param_groups


def weights(model):
    return [each.detach().clone() for each in model.parameters()]


def go_on(model, optimizer, scheduler, start, stop):
    for step in range(start, stop):
        train_step(model, optimizer, torch.randn(8, 16, generator=torch.Generator().manual_seed(step)))
        advance(scheduler, step)


def unsplit_run(name, kind):
    model = small_mlp()
    optimizer = OPTIMIZERS[kind](two_rates(model, (0.05, 0.01)))
    return model, optimizer, SCHEDULES[name](optimizer)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *((name, "sgd") for name in ("cosine_short", "one_cycle", "sequential_in_chained", "plateau")),
        ("lambda_per_group", "adam"),
        ("one_cycle", "adamw"),
    ],
)
def test_training_that_is_split_half_way_goes_on_as_if_it_was_not(name, kind):
    model, optimizer, schedule = unsplit_run(name, kind)
    go_on(model, optimizer, schedule, 0, 20)
    expected = weights(model)
    model, optimizer, schedule = unsplit_run(name, kind)
    go_on(model, optimizer, schedule, 0, 8)
    state = {key: dict(value) for key, value in optimizer.state.items()}
    split_param_groups(optimizer, model, schedulers=[schedule])
    assert len(optimizer.param_groups) == 10
    assert {key: dict(value) for key, value in optimizer.state.items()} == state
    scheduler = TempBalance(optimizer, model, schedule, min_eigenvalues=8, interval=4, scale_range=(1.0, 1.0))
    go_on(model, optimizer, scheduler, 8, 20)
    assert set(scheduler.last_scales.values()) == {1.0}
    assert all(map(torch.equal, model.parameters(), expected))


NESTED_AND_PER_GROUP = ("lambda_per_group", "cyclic_per_group", "plateau_per_group", "sequential_in_chained", "swa")


@pytest.mark.parametrize(
    ("name", "when", "number"),
    [
        *((name, 7, float) for name in SCHEDULES),
        *((name, 0, float) for name in NESTED_AND_PER_GROUP),
        *((name, 7, torch.tensor) for name in NESTED_AND_PER_GROUP),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_schedulers_built_before_the_split_follow_it(name, when, number):
    model = small_mlp()
    optimizer, twin = (SGD(two_rates(model, (number(0.1), number(0.025))), lr=0.1, momentum=0.9) for _ in range(2))
    schedule, bare = SCHEDULES[name](optimizer), SCHEDULES[name](twin)
    origin = {id(each): group for group in twin.param_groups for each in group["params"]}
    for epoch in range(40):
        if epoch == when:
            split_param_groups(optimizer, model, schedulers=[schedule])
            TempBalance(optimizer, model, schedule, min_eigenvalues=8, scale_range=(1.0, 1.0))
        for group in optimizer.param_groups:
            expected = origin[id(group["params"][0])]
            assert float(group["lr"]) == float(expected["lr"])
            assert group["momentum"] == expected["momentum"]
        optimizer.step()
        twin.step()
        advance(schedule, epoch)
        advance(bare, epoch)
    assert len(optimizer.param_groups) == 10
    assert len(schedule.get_last_lr()) == 10


def test_tensor_rates_are_not_shared_after_the_split():
    model, rate = small_mlp(), torch.tensor(0.1)
    optimizer = SGD(model.parameters(), lr=rate)
    schedule = CosineAnnealingLR(optimizer, T_max=5)
    split_param_groups(optimizer, model, schedulers=[schedule])
    for values in (
        [group["lr"] for group in optimizer.param_groups] + [optimizer.defaults["lr"]],
        [group["initial_lr"] for group in optimizer.param_groups],
        schedule.base_lrs,
        schedule.get_last_lr(),
    ):
        assert len({id(each) for each in values}) == len(values) >= 5
        assert {float(each) for each in values} == {float(rate)}


def test_splitting_an_optimizer_twice_is_splitting_it_once():
    model, optimizer, schedule = unsplit_run("cosine", "sgd")
    split_param_groups(optimizer, model, schedulers=[schedule])
    labels, base = label_of(optimizer.param_groups), list(schedule.base_lrs)
    split_param_groups(optimizer, model, schedulers=[schedule])
    assert label_of(optimizer.param_groups) == labels
    assert schedule.base_lrs == base
    assert len(optimizer.param_groups) == 10


class Mine(StepLR):
    """A scheduler that keeps nobody knows what for each group."""


@pytest.mark.parametrize(
    "build",
    [
        lambda each: Mine(each, 3),
        lambda each: ChainedScheduler([ExponentialLR(each, 0.9), Mine(each, 3)]),
        lambda each: SequentialLR(each, [Mine(each, 3), ExponentialLR(each, 0.9)], [2]),
    ],
    ids=["alone", "chained", "sequential"],
)
def test_an_unknown_scheduler_is_refused_and_nothing_changes(build):
    model = small_mlp()
    optimizer = SGD(two_rates(model), lr=0.1)
    known, unknown = LambdaLR(optimizer, [hyperbola, wave]), build(optimizer)
    groups, base = list(optimizer.param_groups), list(known.base_lrs)
    with raises(TypeError, "Mine"):
        split_param_groups(optimizer, model, schedulers=[known, unknown])
    assert all(now is then for now, then in zip(optimizer.param_groups, groups, strict=True))
    assert all("layer" not in group for group in groups)
    assert known.base_lrs == base


def test_a_scheduler_of_another_optimizer_is_refused_and_nothing_changes():
    model, optimizer, _ = unsplit_run("cosine", "sgd")
    _, _, other = unsplit_run("cosine", "sgd")
    with raises(ValueError, "CosineAnnealingLR", "optimizer"):
        split_param_groups(optimizer, model, schedulers=[other])
    assert len(optimizer.param_groups) == 2


def test_a_scheduler_that_missed_a_group_is_refused_and_nothing_changes():
    model, optimizer, schedule = unsplit_run("cosine", "sgd")
    optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(2))]})
    with raises(ValueError, "CosineAnnealingLR.base_lrs", 2, 3):
        split_param_groups(optimizer, model, schedulers=[schedule])
    assert len(optimizer.param_groups) == 3


def test_lbfgs_is_refused_and_nothing_changes():
    model = small_mlp()
    optimizer = LBFGS(model.parameters())
    with raises(TypeError, "LBFGS"):
        split_param_groups(optimizer, model)
    assert len(optimizer.param_groups) == 1
    assert "layer" not in optimizer.param_groups[0]


@pytest.mark.parametrize("name", ["cosine", "one_cycle", "sequential", "plateau"])
def test_a_checkpoint_of_the_unsplit_optimizer_is_loaded_and_then_split(name):
    model, optimizer, schedule = unsplit_run(name, "sgd")
    go_on(model, optimizer, schedule, 0, 9)
    file = io.BytesIO()
    torch.save([each.state_dict() for each in (model, optimizer, schedule)], file)
    go_on(model, optimizer, schedule, 9, 18)
    expected, rates = weights(model), rates_of(optimizer)

    model, optimizer, schedule = unsplit_run(name, "sgd")
    saved = torch.load(io.BytesIO(file.getvalue()), weights_only=True)
    for each, state in zip((model, optimizer, schedule), saved, strict=True):
        each.load_state_dict(state)
    split_param_groups(optimizer, model, schedulers=[schedule])
    scheduler = TempBalance(optimizer, model, schedule, min_eigenvalues=8, scale_range=(1.0, 1.0))
    go_on(model, optimizer, scheduler, 9, 18)
    assert all(map(torch.equal, model.parameters(), expected))
    assert sorted(set(rates_of(optimizer))) == sorted(set(rates))


def test_a_split_optimizer_saves_and_loads_its_labels():
    model, optimizer, _ = unsplit_run("cosine", "sgd")
    split_param_groups(optimizer, model)
    other = SGD(param_groups(model, two_rates(model)), lr=0.1)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert label_of(other.param_groups) == label_of(optimizer.param_groups) == label_of(param_groups(model))


@pytest.mark.parametrize("name", ["mlp", "cnn", "transformer", "lstm", "extras"])
def test_splitting_in_place_gives_the_groups_of_param_groups(name):
    model = MODELS[name]()
    trainable = [each for each in model.parameters() if each.requires_grad]
    optimizer = SGD(trainable, lr=0.1)
    split_param_groups(optimizer, model)
    assert label_of(optimizer.param_groups) == label_of(param_groups(model))
    assert sorted(held(optimizer.param_groups)) == sorted(ids(trainable))


# --- a module that is replaced after the optimizer was built


def replaced_linear(model):
    model[3] = nn.Linear(24, 20)


def replaced_weight(model):
    model[3].weight = nn.Parameter(torch.randn(20, 24))


def replaced_by_another_shape(model):
    model[3] = nn.Linear(24, 7)


def normed(model):
    nn.utils.parametrizations.weight_norm(model[3])


@pytest.mark.parametrize("replace", [replaced_linear, replaced_weight, replaced_by_another_shape, normed])
def test_a_layer_whose_parameters_were_replaced_is_named(replace):
    model = small_mlp()
    optimizer = SGD(param_groups(model), lr=0.1)
    check_same_parameters(find_layers(model), optimizer)
    replace(model)
    with raises(RuntimeError, "layer '3'", "param_groups"):
        check_same_parameters(find_layers(model), optimizer)
    check_same_parameters(find_layers(model), SGD(param_groups(model), lr=0.1))


def unchanged(model):
    pass


def frozen(model):
    model[3].requires_grad_(False)


def without_bias(model):
    model[3].bias = None


def removed(model):
    model[3] = nn.Identity()


def pruned(model):
    nn.utils.prune.l1_unstructured(model[3], "weight", 0.5)


def converted(model):
    model.to(torch.float64)


def grown(model):
    model.append(nn.Linear(12, 12))


def untied(model):
    model[6].weight.data.zero_()


@pytest.mark.parametrize(
    "change",
    [unchanged, frozen, without_bias, removed, pruned, converted, grown, untied],
    ids=lambda each: each.__name__,
)
def test_other_changes_of_a_model_are_no_replaced_layer(change):
    model = small_mlp()
    optimizer = SGD(param_groups(model), lr=0.1)
    change(model)
    check_same_parameters(find_layers(model), optimizer)


def test_two_optimizers_of_one_model_hold_no_replaced_layer():
    model = small_mlp()
    for chosen in (model[3].parameters(), [model[6].weight]):
        check_same_parameters(find_layers(model), SGD(param_groups(model, list(chosen)), lr=0.1))


def test_an_embedding_has_a_group_of_its_own_unless_it_is_tied_to_a_head():
    model = nn.Sequential(nn.Embedding(9, 6), nn.Linear(6, 6), nn.Linear(6, 9))
    optimizer = SGD(model.parameters(), lr=0.1)
    split_param_groups(optimizer, model)
    for groups in (param_groups(model), optimizer.param_groups):
        assert [(group.get("layer"), ids(group["params"])) for group in groups] == [
            (name, ids(model[int(name)].parameters())) for name in "012"
        ]
    model[2].weight = model[0].weight
    assert [group["layer"] for group in param_groups(model)] == ["2", "1"]


def test_an_embedding_trains_at_the_base_rate_as_long_as_embeddings_are_not_scored():
    model = nn.Sequential(nn.Embedding(99, 64), *(nn.Linear(64, 64) for _ in range(3)))
    optimizer = SGD(param_groups(model), lr=0.1)
    scheduler = TempBalance(optimizer, model)
    assert len(scheduler.last_scales) == 2
    assert optimizer.param_groups[0]["lr"] == 0.1
