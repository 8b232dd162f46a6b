"""What a family of models is in Hugging Face's format: config fields, names of tensors, classes."""

import dataclasses
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from bert_jax.config.bert_config import OPTIONS, Option, Spelling
from bert_jax.heads import PARTS
from bert_jax.heads.tensors import Form, Part, Tensor
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import Path, as_path
from bert_jax.runtime.schema import Allowed, why_not_allowed
from bert_jax.weights import parameters

# Their name for a module of ours, or for a parameter that is no kernel, scale or bias; several
# where what is fused here is apart there. `{i}` stands for the number of a layer.
Names = Mapping[str, str | tuple[str, ...]]
_LAYER = re.compile(r'layer_(\d+)')
_LEAVES = {'kernel': 'weight', 'scale': 'weight', 'bias': 'bias'}


class Misfit(NamedTuple):
    """A field of config.json with which a class computes something else than our head.

    Attributes:
      setting: the field and its value, NAME=VALUE.
      wanted: what it must be.
    """

    setting: str
    wanted: str


def _fits(config: Mapping[str, Any]) -> Misfit | None:
    """For a class that reads no field of its own."""
    return None


def only_with(**allowed: Sequence[Any]) -> Callable[[Mapping[str, Any]], Misfit | None]:
    """For a class that reads fields of its own: the values with which our head computes the same.

    The first is that of a config.json without the field.
    """
    def misfit(config: Mapping[str, Any]) -> Misfit | None:
        for key, values in allowed.items():
            value = config.get(key, values[0])
            if value not in values:
                return Misfit(f'{key}={value!r}', ' or '.join(map(repr, values)))
        return None

    return misfit


class Architecture(NamedTuple):
    """One of a family's classes in transformers.

    Attributes:
      name: of the class, without what it begins with for a model type, such as 'ForMaskedLM'.
      heads: ours that it serves; without anything else to tell them apart, it is read as the first.
      modules: names of the pooler and of the head's modules.
      misfit: what the fields of config.json that only this class reads have against it.
    """

    name: str
    heads: tuple[str, ...]
    modules: Names
    misfit: Callable[[Mapping[str, Any]], Misfit | None] = _fits

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts that the class has besides embeddings and layers."""
        return tuple(part for part in PARTS if self.names_of(part))

    def has(self, part: str) -> bool:
        """Whether the class has a part, such as 'cls/predictions'."""
        return any(each.prefix == f'{part}/' for each in self.parts)

    def names_of(self, part: Part) -> Names:
        """The rows of `modules` that are of a part."""
        return {
            module: name for module, name in self.modules.items()
            if f'{module}/'.startswith(part.prefix)}


def value_in(config: Mapping[str, Any], key: str, allowed: Allowed, where: Path) -> Any:
    """A field of config.json, for `Family.options_of`.

    Raises:
      InputError: it is absent or has another value than those allowed.
    """
    value = config.get(key)
    wrong = why_not_allowed(value, allowed)
    if wrong:
        raise InputError(f'{where}: {key}={value!r} {wrong}')
    return value


def _no_fields(values: Mapping[str, Any]) -> dict[str, Any]:
    """For a family whose `spellings` say all."""
    return {}


def _no_options(config: Mapping[str, Any], where: Path) -> dict[str, Any]:
    """For a family whose `spellings` say all."""
    return {}


@dataclasses.dataclass(frozen=True)
class Family:
    """A family of models: how transformers names and configures what is an option or a part here.

    A model is written as the first family whose config can hold all of its options.

    Attributes:
      name: in messages.
      model_types: `model_type` in config.json, with what the names of its classes begin with;
        models are written as the first.
      prefix: what stands before the names of the encoder's tensors, but in the class of the encoder
        alone.
      modules: names of embeddings and layers, with `prefix`.
      architectures: classes; of those that serve a head, the first is written whose parts exist.
      tied: tensors that are copies of a parameter of ours, which must be equal to it.
      spellings: of the options that are fields of config.json.
      options: the values of the others, where they are not those of the paper's BERT.
      only: fields that change what all classes compute, with the one value that can be read; what
        only some classes read is in their `misfit`.
      defaults: of fields, in transformers, where an option's default here is another.
      token_ids: fields with the ids of special tokens, with their names in `text.vocab.Vocab`.
      options_of: further options, from the fields of config.json and the file's path for messages.
        A field that is absent has its value of `defaults`.
      fields_of: the inverse: further fields, from all options.
      swapped: modules of which the files hold what is fused here in the opposite order.
      old_fields: names that older files have for fields, with those that they have here.
      also_named: beginnings of names that files have, too, of a model that transformers has loaded
        without these tensors, with those in the tables.
      kernels_in_memory: of `modules`, those of the layers' matrices, with the names that they have
        in memory, where transformers gives modules others there than in files.
      prefix_in_memory: `prefix` there, if it is another.
      zeros_in: fields by which a model lacks some of the biases that it has here: {field: ends of
        the names of the modules without them}.
    """

    name: str
    model_types: Mapping[str, str]
    prefix: str
    modules: Names
    architectures: tuple[Architecture, ...]
    tied: Mapping[str, str]
    spellings: Mapping[str, Spelling]
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    only: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    token_ids: Mapping[str, str] = dataclasses.field(default_factory=dict)
    options_of: Callable[[Mapping[str, Any], Path], dict[str, Any]] = _no_options
    fields_of: Callable[[Mapping[str, Any]], dict[str, Any]] = _no_fields
    swapped: tuple[str, ...] = ()
    old_fields: Mapping[str, str] = dataclasses.field(default_factory=dict)
    also_named: Mapping[str, str] = dataclasses.field(default_factory=dict)
    kernels_in_memory: Names = dataclasses.field(default_factory=dict)
    prefix_in_memory: str = ''
    zeros_in: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)

    @property
    def model_type(self) -> str:
        """The `model_type` that models are written with."""
        return next(iter(self.model_types))

    def class_name(self, architecture: Architecture) -> str:
        """The name of a class for `model_type`."""
        return self.model_types[self.model_type] + architecture.name

    @property
    def in_memory(self) -> 'Family':
        """The family with the names that matrices of layers, and heads, have in memory."""
        if not self.kernels_in_memory:
            return self
        return dataclasses.replace(
            self, prefix=self.prefix_in_memory or self.prefix, modules=self.kernels_in_memory,
            swapped=())

    @property
    def first_tensor(self) -> str:
        """The name of the first tensor of the first layer's attention."""
        named = self.modules['bert/encoder/layer_{i}/attention/self/qkv']
        name = named if isinstance(named, str) else named[0]
        return name.format(i=0) + '.weight'

    @property
    def beginnings(self) -> tuple[str, ...]:
        """What the names of tensors begin with in the class of the encoder alone."""
        tables = [self.modules, *(architecture.modules for architecture in self.architectures)]
        found = set()
        for table in tables:
            for named in table.values():
                name = named if isinstance(named, str) else named[0]
                if name.startswith(self.prefix):
                    found.add(name.removeprefix(self.prefix).split('.')[0] + '.')
        return tuple(sorted(found))

    @property
    def beginnings_of_heads(self) -> tuple[str, ...]:
        """What the names of tensors begin with that are no part of the encoder's class."""
        found = set()
        for architecture in self.architectures:
            for named in architecture.modules.values():
                name = named if isinstance(named, str) else named[0]
                if not name.startswith(self.prefix):
                    found.add(name.split('.')[0] + '.')
        return tuple(sorted(found))

    def architecture(self, class_name: str) -> Architecture | None:
        """The architecture of a class, of any of the model types."""
        for begin in self.model_types.values():
            for architecture in self.architectures:
                if class_name == begin + architecture.name:
                    return architecture
        return None

    def architecture_of(self, names: Collection[str]) -> Architecture:
        """The class whose head is in files of no known class: that with the most modules there.

        Args:
          names: of the tensors in the files.
        """
        def num_modules(architecture: Architecture) -> int:
            modules = architecture.modules.values()
            if all(name in names or f'{name}.weight' in names for name in modules):
                return len(modules)
            return 0

        return max(self.architectures, key=num_modules)

    def check_class(
        self, config: Mapping[str, Any], architecture: Architecture, where: Path
    ) -> None:
        """Raises InputError if a class computes something else than our head with these fields."""
        # Where a field has no default here, null is a value, such as no activation.
        misfit = architecture.misfit({**config, **self._stated(config)})
        if misfit:
            raise InputError(f'{where}: {misfit.setting} cannot be read: of the models of '
                             f'{self.class_name(architecture)}, only those with {misfit.wanted} '
                             'can')

    def without_bias(self, config: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
        """The rows of `zeros_in` whose field is false in the content of config.json."""
        stated = self._stated(config)
        return {
            field: names for field, names in self.zeros_in.items() if not stated.get(field, True)}

    def _stated(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """The fields of config.json, with the values in transformers of those that are absent."""
        stated = dict(self.defaults)
        for key, value in config.items():
            newer = self.old_fields.get(key, key)
            if value is not None and (newer == key or config.get(newer) is None):
                stated[newer] = value
        return stated

    def model_of(self, config: Mapping[str, Any], where: Path) -> dict[str, Any]:
        """`Weights.model` from the content of config.json.

        Raises:
          InputError: the file, `where`, has a field that cannot be read.
        """
        model = self._read(config, where)
        parameters.check_model(model, where)
        return model

    def _read(self, config: Mapping[str, Any], where: Path) -> dict[str, Any]:
        """`model_of` without what only makes sense of several options together."""
        stated = self._stated(config)
        of_layers = stated.get('per_layer_config')
        if of_layers:
            raise InputError(f'{where}: per_layer_config={of_layers!r:.100} cannot be read: all '
                             'layers must have the fields that the file has for them all')
        for key, value in self.only.items():
            if stated.get(key, value) != value:
                raise InputError(f'{where}: {key}={stated[key]!r} cannot be read: of {self.name} '
                                 f'models, only those with {value!r} can')
        self._check_complete(stated, where)
        model = parameters.read_model(stated, self.spellings, where)
        model |= self.options
        model |= self.options_of(stated, where)
        return model

    def _check_complete(self, config: Mapping[str, Any], where: Path) -> None:
        """Raises InputError if a field is absent that has no default, such as a size."""
        for option in OPTIONS:
            spelling = self.spellings.get(option.name)
            if spelling is None or option.default is not None:
                continue
            if spelling.key not in config:
                raise InputError(f'{where} has no {spelling.key}, which {self.name} models have: '
                                 'put the config.json there that belongs to the weights')

    def config_of(self, model: Mapping[str, Any]) -> dict[str, Any]:
        """The fields of config.json for `Weights.model`; options that it cannot hold are lost."""
        return parameters.spelled(model, self.spellings) | self.fields_of(model)

    def lost_options(self, model: Mapping[str, Any]) -> list[Option]:
        """The options that `config_of` loses: all of them if no such model is read."""
        try:
            back = self._read(self.config_of(model), as_path('config.json'))
        except InputError:
            return list(OPTIONS)
        lost = []
        for option in OPTIONS:
            value = model[option.name]
            spelling = self.spellings.get(option.name)
            can_be_said = spelling is None or parameters.is_expressible(spelling, value)
            if back[option.name] != value or not can_be_said:
                lost.append(option)
        return lost

    def form_of(self, tensor: Tensor, architecture: Architecture) -> Form | None:
        """How files of a class hold a parameter; None if they do not."""
        return self._form_of(tensor, {**self.modules, **architecture.modules})

    def form_in_any(self, tensor: Tensor, architecture: Architecture) -> Form | None:
        """`form_of`, or if the class lacks the parameter, that in another class of the family.

        Files may hold more than their class has. A part with a name that the class itself gives to
        another is not meant.
        """
        names = {**self.modules, **architecture.modules}
        taken = set(names.values())
        for other in self.architectures:
            for part in other.parts:
                of_part = other.names_of(part)
                if part not in architecture.parts and taken.isdisjoint(of_part.values()):
                    names = {**of_part, **names}
        return self._form_of(tensor, names)

    def _form_of(self, tensor: Tensor, names: Names) -> Form | None:
        """The form of a parameter by a table of names; None if it is not in the table."""
        name = _LAYER.sub('layer_{i}', tensor.name)
        module, _, leaf = name.rpartition('/')
        ending = ''
        named = names.get(name)
        if named is None:
            named = names.get(module)
            ending = '.' + _LEAVES.get(leaf, leaf)
        if named is None:
            return None
        number = _LAYER.search(tensor.name)
        several = (named,) if isinstance(named, str) else named
        if number:
            several = tuple(name.replace('{i}', number[1]) for name in several)
        return Form(
            tuple(name + ending for name in several),
            is_transposed=tensor.name.endswith('/kernel'), is_swapped=module in self.swapped)
