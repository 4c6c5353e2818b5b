"""From rollouts to gradients: batches, returns, losses, the learner."""
