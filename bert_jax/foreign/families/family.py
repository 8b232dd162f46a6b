"""How a family of models is stored in Hugging Face's format: config fields, tensors, classes."""

import dataclasses
import functools
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

# transformers' name for each module here, or for a parameter that is no kernel, scale or bias; a
# tuple where one module here is several in transformers. `{i}` stands for the number of a layer.
Names = Mapping[str, str | tuple[str, ...]]
_LAYER = re.compile(r'layer_(\d+)')
_LEAVES = {'kernel': 'weight', 'scale': 'weight', 'bias': 'bias'}


class Misfit(NamedTuple):
    """A field of config.json with which a class computes something else than our head.

    Attributes:
      setting: the field and its value, NAME=VALUE, for messages.
      wanted: the value or values with which it computes the same.
    """

    setting: str
    wanted: str


def _no_misfit(config: Mapping[str, Any]) -> Misfit | None:
    """`Architecture.misfit` of a class that reads no fields of its own."""
    return None


def only_with(**allowed: Sequence[Any]) -> Callable[[Mapping[str, Any]], Misfit | None]:
    """`Architecture.misfit` of a class that reads fields of its own.

    Args:
      **allowed: for each field, the values with which our head computes the same. A config.json
        without the field has the first.
    """
    def misfit(config: Mapping[str, Any]) -> Misfit | None:
        for key, values in allowed.items():
            value = config.get(key, values[0])
            if value not in values:
                return Misfit(f'{key}={value!r}', ' or '.join(map(repr, values)))
        return None

    return misfit


@dataclasses.dataclass(frozen=True)
class Architecture:
    """One of a family's classes in transformers.

    Attributes:
      name: the class's name without the model's, such as 'ForMaskedLM'.
      heads: our heads that are stored as this class. If nothing else tells them apart, a model of
        the class is read as the first.
      modules: names of the pooler and of the head's modules.
      misfit: takes the fields of config.json, and returns one that only this class reads and with
        which it computes something else than our head; None if there is none.
    """

    name: str
    heads: tuple[str, ...]
    modules: Names
    misfit: Callable[[Mapping[str, Any]], Misfit | None] = _no_misfit

    @functools.cached_property
    def parts(self) -> tuple[Part, ...]:
        """The parts of a model that the class has besides embeddings and layers."""
        return tuple(part for part in PARTS if self.names_of(part))

    def has(self, part: str) -> bool:
        """Whether the class has a part, such as 'cls/predictions'."""
        return any(each.prefix == f'{part}/' for each in self.parts)

    def names_of(self, part: Part) -> Names:
        """Those of `modules` that belong to a part."""
        return {
            module: name for module, name in self.modules.items()
            if f'{module}/'.startswith(part.prefix)}


def value_in(config: Mapping[str, Any], key: str, allowed: Allowed, where: Path) -> Any:
    """The value of a field of config.json, for `Family.options_of`.

    Raises:
      InputError: it is absent, or its value is not allowed.
    """
    value = config.get(key)
    wrong = why_not_allowed(value, allowed)
    if wrong:
        raise InputError(f'{where}: {key}={value!r} {wrong}')
    return value


def _no_fields(values: Mapping[str, Any]) -> dict[str, Any]:
    """`Family.fields_of` where `spellings` have all fields."""
    return {}


def _no_options(config: Mapping[str, Any], where: Path) -> dict[str, Any]:
    """`Family.options_of` where `spellings` have all options."""
    return {}


@dataclasses.dataclass(frozen=True)
class Family:
    """A family of models: what transformers calls the options and parameters of models here.

    A model is written as the first family whose config can hold all of its options.

    Attributes:
      name: the family's name in messages.
      model_types: the values of `model_type` in config.json that are of the family, each with what
        the names of its classes begin with. Models are written with the first.
      prefix: what the names of the encoder's tensors begin with in a class that has a head. In the
        encoder's own class, they are without it.
      modules: names of embeddings and layers, with `prefix`.
      architectures: the family's classes. Of several with the same head, the first is written whose
        parts the model has.
      tied: tensors that are copies of a parameter, with our name of it. One that is not equal to
        the parameter is refused.
      spellings: the options that are fields of config.json, with the field and its values.
      options: the values of options that no field says, where they are not the paper's BERT's.
      only: fields that change what all classes compute, with the one value that can be read. (Those
        that only some classes read are in `Architecture.misfit`.)
      defaults: transformers' defaults of fields, where they are not the options' defaults here.
      token_ids: the fields with ids of special tokens, with their names in `text.vocab.Vocab`.
      options_of: returns further options. It takes the fields of config.json, of which those that
        are absent have the value in `defaults`, and the file's path for messages.
      fields_of: its inverse, which returns further fields. It takes all options, also those of
        models of other families.
      swapped: modules that are fused here and in the files, but there in the opposite order.
      old_fields: names of fields in older files, with the names that are read.
      also_named: what names of tensors may begin with instead, with what they begin with in
        `modules` and `architectures`: transformers loads such files without these tensors.
      kernels_in_memory: transformers' names, in memory, of the modules with the layers' matrices;
        empty if they are those in files. peft uses the names in memory.
      prefix_in_memory: `prefix` in memory; '' if it is the same.
      zeros_in: fields that say that a model lacks some of the biases that it has here: {field: ends
        of the names of the modules without them}.
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
        """The full name of a class, such as 'BertForMaskedLM', as models are written."""
        return self.model_types[self.model_type] + architecture.name

    @property
    def in_memory(self) -> 'Family':
        """The family with transformers' names in memory, which peft uses, of layers' matrices."""
        if not self.kernels_in_memory:
            return self
        return dataclasses.replace(
            self, prefix=self.prefix_in_memory or self.prefix, modules=self.kernels_in_memory,
            swapped=())

    @property
    def first_tensor(self) -> str:
        """The name of the query's weight, or of the fused one, in the first layer."""
        named = self.modules['bert/encoder/layer_{i}/attention/self/qkv']
        name = named if isinstance(named, str) else named[0]
        return name.format(i=0) + '.weight'

    @property
    def beginnings(self) -> tuple[str, ...]:
        """What the names of tensors can begin with in the encoder's own class, up to a dot."""
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
        """What the names of heads' tensors, which are without `prefix`, begin with, up to a dot."""
        found = set()
        for architecture in self.architectures:
            for named in architecture.modules.values():
                name = named if isinstance(named, str) else named[0]
                if not name.startswith(self.prefix):
                    found.add(name.split('.')[0] + '.')
        return tuple(sorted(found))

    def architecture(self, class_name: str) -> Architecture | None:
        """The architecture with this class name, for any of the model types; None if none has."""
        for beginning in self.model_types.values():
            for architecture in self.architectures:
                if class_name == beginning + architecture.name:
                    return architecture
        return None

    def architecture_of(self, names: Collection[str]) -> Architecture:
        """The class of files whose config.json names none: the largest whose modules are all there.

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
        """Those of `zeros_in` whose field is false in the content of config.json."""
        stated = self._stated(config)
        return {
            field: names for field, names in self.zeros_in.items() if not stated.get(field, True)}

    def _stated(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """The fields of config.json by their current names, with `defaults` for absent ones."""
        stated = dict(self.defaults)
        for key, value in config.items():
            current = self.old_fields.get(key, key)
            if value is not None and (current == key or config.get(current) is None):
                stated[current] = value
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
        """The fields of config.json for `Weights.model`; an option without a field is left out."""
        return parameters.spelled(model, self.spellings) | self.fields_of(model)

    def lost_options(self, model: Mapping[str, Any]) -> list[Option]:
        """The options that change when the result of `config_of` is read; all if it cannot be."""
        try:
            back = self._read(self.config_of(model), as_path('config.json'))
        except InputError:
            return list(OPTIONS)
        lost = []
        for option in OPTIONS:
            value = model[option.name]
            spelling = self.spellings.get(option.name)
            has_word = spelling is None or parameters.is_expressible(spelling, value)
            if back[option.name] != value or not has_word:
                lost.append(option)
        return lost

    def form_of(self, tensor: Tensor, architecture: Architecture) -> Form | None:
        """How files of a class hold a parameter; None if they do not."""
        return self._form_of(tensor, {**self.modules, **architecture.modules})

    def forms_in_any(self, architecture: Architecture) -> Callable[[Tensor], Form | None]:
        """`form_of` for any tensor, or for a part that the class lacks, its form in another class.

        Files may hold more parts than their class has. But names that the class itself uses are
        not those of another part.
        """
        names = {**self.modules, **architecture.modules}
        taken = set(names.values())
        for other in self.architectures:
            for part in other.parts:
                of_part = other.names_of(part)
                if part not in architecture.parts and taken.isdisjoint(of_part.values()):
                    names = {**of_part, **names}
        return lambda tensor: self._form_of(tensor, names)

    def _form_of(self, tensor: Tensor, names: Names) -> Form | None:
        """The form of a parameter by a table of names; None if it is not in the table."""
        name = _LAYER.sub('layer_{i}', tensor.name)
        module, _, leaf = name.rpartition('/')
        ending = ''
        found = names.get(name)
        if found is None:
            found = names.get(module)
            ending = '.' + _LEAVES.get(leaf, leaf)
        if found is None:
            return None
        in_files = (found,) if isinstance(found, str) else found
        layer = _LAYER.search(tensor.name)
        if layer:
            in_files = tuple(name.replace('{i}', layer[1]) for name in in_files)
        return Form(
            tuple(name + ending for name in in_files),
            is_transposed=tensor.name.endswith('/kernel'), is_swapped=module in self.swapped)
