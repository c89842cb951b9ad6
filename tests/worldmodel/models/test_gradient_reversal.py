import torch

from worldmodel.models.idm import (
    EmbodimentClassifier,
    embodiment_loss,
    reverse_gradient,
)


def test_values_pass_and_gradients_turn_round():
    x = torch.randn(3, 4, requires_grad=True)
    y = reverse_gradient(x)
    assert torch.equal(x, y)
    (2 * y).sum().backward()
    assert torch.equal(x.grad, torch.full_like(x, -2))


def test_classifier_learns_while_latent_actions_flee():
    torch.manual_seed(0)
    classifier = EmbodimentClassifier(4, 2)
    embodiment = torch.tensor([0, 1, 0, 1])
    latent_actions = (torch.randn(4, 6, 4) + 2 * embodiment[:, None, None]).requires_grad_()
    optimizer = torch.optim.Adam(classifier.parameters(), lr=0.02)
    for _ in range(60):
        optimizer.zero_grad()
        loss, accuracy = embodiment_loss(classifier, latent_actions, embodiment)
        loss.backward()
        optimizer.step()
    assert accuracy > 0.9
    latent_actions.grad = None
    loss, _ = embodiment_loss(classifier, latent_actions, embodiment)
    loss.backward()
    fled = latent_actions.detach() - 5 * latent_actions.grad
    worse, _ = embodiment_loss(classifier, fled, embodiment)
    assert worse > loss
