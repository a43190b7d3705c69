# SPDX-License-Identifier: Apache-2.0
import torch
import torch.nn.functional as F
from golden import case, write

targets = torch.tensor([2, -100, 0, 4])
weight = torch.tensor([0.5, 1, 2, 1, 3]).double()
chances = torch.tensor([[0.1, 0.2, 0.7, 0, 0], [0.3, 0.3, 0.1, 0.1, 0.2]]).double()
labels = torch.tensor([[0, 1], [0.3, 1], [0, 0.9]]).double()
sides = torch.tensor([1.0, -1, 1]).double()
logits, pair, vectors = ((4, 5),), ((3, 2), (3, 2)), ((3, 4), (3, 4))

case("cross entropy sum", lambda x: F.cross_entropy(x, targets, reduction="sum"), *logits)
case("cross entropy none", lambda x: F.cross_entropy(x, targets, reduction="none"), *logits)
case("cross entropy weight", lambda x: F.cross_entropy(x, targets, weight), *logits)
case("cross entropy smooth", lambda x: F.cross_entropy(x, targets, label_smoothing=0.2), *logits)
case("cross entropy weight smooth", lambda x: F.cross_entropy(x, targets, weight, label_smoothing=0.2), *logits)
case("cross entropy ignore", lambda x: F.cross_entropy(x.reshape(4, 5), torch.tensor([2, 3, 0, 4]), ignore_index=3), (2, 2, 5))
case("cross entropy probabilities", lambda x: F.cross_entropy(x, chances), (2, 5))
case("nll", lambda x: F.nll_loss(x.log_softmax(-1), targets, weight), *logits)
case("bce", lambda x: F.binary_cross_entropy(x.sigmoid(), labels), (3, 2))
case("bce with logits", lambda x: F.binary_cross_entropy_with_logits(x, labels), (3, 2))
case("bce pos weight", lambda x: F.binary_cross_entropy_with_logits(x, labels, pos_weight=torch.tensor([2.0, 3])), (3, 2))
case("l1", F.l1_loss, *pair)
case("l1 weight sum", lambda x, y: ((x - y).abs() * torch.tensor([1, 3])).sum(), *pair)
case("smooth l1", lambda x, y: F.smooth_l1_loss(x, y, beta=0.5), *pair)
case("huber", lambda x, y: F.huber_loss(x, y, delta=0.65), *pair)
case("kl div", lambda x: F.kl_div(x.log_softmax(-1), chances, reduction="batchmean"), (2, 5))
case("kl div of logarithms", lambda x, y: F.kl_div(x, y, log_target=True), *pair)
case("cosine similarity", F.cosine_similarity, *vectors)
case("cosine embedding", lambda x, y: F.cosine_embedding_loss(x, y, sides, 0.1), *vectors)
case("margin ranking", lambda x, y: F.margin_ranking_loss(x, y, sides, 0.5), (3,), (3,))
case("triplet margin", F.triplet_margin_loss, *vectors, (3, 4))
write()
