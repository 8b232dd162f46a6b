"""Plans of the paper's tables for tests, and runs that end without training."""

from bert_jax.runtime.files import as_path
from bert_jax.tools.paper.plan import Plan
from bert_jax.tools.paper.tables import TABLES


def plan(name, root, *columns, **options):
    """A plan of one of TABLES at the tiny scale, with one seed of each fine-tuning.

    Args:
      name: of the table.
      root: the directory of the tables.
      columns: of the plan; none: the table's.
      options: other fields of the plan.
    """
    fields = {'scale': 'tiny', 'data': 'data', 'restarts': 1} | options
    return Plan(TABLES[name], root=as_path(root), only=columns, **fields)


def finish(sweep, member, metric='eval/f1', **scores):
    """Ends a run of a sweep with these scores, as in `eval_f1=0.9`."""
    sweep.run(member).mkdir(parents=True, exist_ok=True)
    result = {name.replace('_', '/', 1): score for name, score in scores.items()}
    sweep.finish(member, metric, result)
