// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"slices"
	"testing"

	"github.com/cohort-ml/cohort/nn"
)

// The faults of other libraries that need experts; see reports_test.go.

// usualExperts is the model of usualNet, with experts in the second of its blocks.
func usualExperts() meshDraw {
	d := usualNet()
	d.Net.Blocks[1] = netBlockDraw{Heads: 4, KeyHeads: 4, HeadDim: 2, Hidden: 8, Experts: 8, Active: 2}
	return d
}

// withExperts changes the experts of a draw.
func (d meshDraw) withExperts(change func(b *netBlockDraw)) meshDraw {
	d.Net.Blocks = slices.Clone(d.Net.Blocks)
	change(&d.Net.Blocks[1])
	return d
}

// expertMeshes are those of most reports.
var expertMeshes = []lawSizes{{EP: 2}, {EP: 4}, {EP: 2, FSDP: 2}, {EP: 2, Replicate: 2}, {EP: 2, TP: 2}, {EP: 2, CP: 2}, {PP: 2, EP: 2}}

// TestExpertsScaledTwice: NVIDIA/Megatron-LM#7165, pytorch/pytorch#160285. Gradients of experts were divided
// by the ranks of another axis, or were twice too large with two ranks of ep.
func TestExpertsScaledTwice(t *testing.T) {
	t.Parallel()
	d := usualExperts()
	d.MaxNorm, d.Microbatches = 0.1, 3
	onMeshes(t, expertMeshes, d)
}

// TestNormMissesExperts: NVIDIA/Megatron-LM#5916, log #6080. The norm had no experts with more than one
// rank on ep and on tp, or with one rank on ep.
func TestNormMissesExperts(t *testing.T) {
	d := usualExperts()
	d.MaxNorm = 0.1
	onMeshes(t, []lawSizes{{EP: 1}, {TP: 2}, {FSDP: 2}, {EP: 2, TP: 2}, {EP: 2, FSDP: 2, TP: 2}}, d)
}

// TestExpertBiasTimesTensorRanks: pytorch/torchtitan log #4245. The output bias of experts was added on
// every rank of tp.
func TestExpertBiasTimesTensorRanks(t *testing.T) {
	d := usualExperts().withExperts(func(b *netBlockDraw) { b.ExpertBias = true })
	cut := d
	cut.Sequence = true
	onMeshes(t, []lawSizes{{TP: 2}, {TP: 4}, {EP: 2, TP: 2}, {EP: 2}}, d, cut)
}

// TestGradientsBelowExperts: pytorch/torchtitan log #4054. What stands before the experts lost the reduction
// of its gradients where there was no expert parallelism.
func TestGradientsBelowExperts(t *testing.T) {
	d := usualExperts()
	d.Net.Positions = "learned"
	onMeshes(t, []lawSizes{{FSDP: 2}, {Replicate: 2}, {TP: 2}, {FSDP: 2, TP: 2}, {EP: 2}}, d)
}

// TestRoutingBias: pytorch/torchtitan log #4154. The bias of the routing was moved by one rank's tokens, or
// reached the weights.
func TestRoutingBias(t *testing.T) {
	t.Parallel()
	d := usualExperts().withExperts(func(b *netBlockDraw) { b.Options = nn.MoEOptions{Sigmoid: true, BiasStep: 0.05} })
	d.Microbatches, d.File = 3, true
	onMeshes(t, slices.Concat(expertMeshes, []lawSizes{{FSDP: 2}, {TP: 2}}), d)
}

// TestExpertsOnCutSequence: deepspeedai/DeepSpeed log #8195, pytorch/torchtitan log #3604. With a sequence
// that tp cuts, experts got wrong tokens or gave their results to others.
func TestExpertsOnCutSequence(t *testing.T) {
	t.Parallel()
	d := usualExperts().withExperts(func(b *netBlockDraw) { b.Shared, b.SharedGate = true, true })
	d.Sequence = true
	odd := d
	odd.Time = 7
	onMeshes(t, []lawSizes{{TP: 2}, {TP: 4}, {EP: 2, TP: 2}, {EP: 2, FSDP: 2, TP: 2}}, d, odd)
}

// TestAuxiliaryLossTimesRanks: NVIDIA/Megatron-LM log #5047. The losses that balance experts were scaled by
// the ranks of tp.
func TestAuxiliaryLossTimesRanks(t *testing.T) {
	t.Parallel()
	d := usualExperts().withExperts(func(b *netBlockDraw) { b.Options = nn.MoEOptions{Balance: 0.1, Z: 0.05} })
	more := d
	more.Microbatches, more.Sequence = 3, true
	onMeshes(t, slices.Concat(expertMeshes, []lawSizes{{TP: 2}, {TP: 4}, {CP: 2}, {PP: 2}, {FSDP: 3}}), d, more)
}

// TestExpertsOverflow: experts with a capacity drop the tokens that one rank drops.
func TestExpertsOverflow(t *testing.T) {
	d := usualExperts().withExperts(func(b *netBlockDraw) { b.Options = nn.MoEOptions{Capacity: 0.75} })
	onMeshes(t, []lawSizes{{EP: 2}, {EP: 4}, {TP: 2}, {EP: 2, TP: 2}, {PP: 2}, {FSDP: 2}}, d)
}
