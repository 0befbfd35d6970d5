"""Boundaries between epochs in a whole federation: members come, go and get other keys."""

from defl.ids import NodeId
from defl.messages import Remove
from support.epochs import Churn


def test_a_member_joins_and_another_leaves_while_training_goes_on() -> None:
    churn = Churn(4)
    joiner = churn.add_machine("joiner")
    churn.run_until_round(2)
    churn.change(churn.add(joiner, "eve"))
    churn.run_until_epoch(1)
    churn.run_until_round(6)

    churn.propose(joiner, Remove(NodeId(4)))
    churn.finish()

    assert churn.newest.epoch == 2
    assert churn.newest.state.round == 12
    assert churn.participant(joiner).departed
    assert churn.one_history()
    assert not churn.accusations
