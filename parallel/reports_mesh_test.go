// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"errors"
	"fmt"
	"slices"
	"testing"
)

// The faults of other libraries that need more axes than replicate and fsdp; see reports_test.go.

// usualNet is a model with two blocks, attention, and a table of the tokens that is the head too.
func usualNet() meshDraw {
	one := allSizes(1, nil)[0]
	return meshDraw{
		Seed: 3, Microbatches: 1, Time: 8, Optimizer: "sgd", Sizes: one, Reloaded: one, Embedding: "vocabulary", Method: "ring",
		Net: netDraw{
			Vocabulary: 50, Width: 6, Positions: "rotary",
			Blocks: []netBlockDraw{{Heads: 4, KeyHeads: 4, HeadDim: 2, Hidden: 8}, {Heads: 4, KeyHeads: 4, HeadDim: 4, Hidden: 4, Gated: true}},
		},
	}
}

// meshName names the axes of a mesh and their sizes. Those that are left out become 1.
func meshName(z *lawSizes) (name string) {
	for _, axis := range allAxes {
		if n := axisSize(z, axis); *n > 1 {
			name += fmt.Sprint(axis, " ", *n, " ")
		} else {
			*n = 1
		}
	}
	return name
}

// onMeshes checks draws on meshes, as far as their axes are in use.
func onMeshes(t *testing.T, meshes []lawSizes, draws ...meshDraw) {
	t.Helper()
	for _, z := range meshes {
		name := meshName(&z)
		if !hasAxes(name, meshAxes) {
			continue
		}
		for _, d := range draws {
			if d.Sizes = z; z.PP > 1 && d.Schedule == "" {
				d.Schedule, d.Stages, d.Microbatches = "1f1b", z.PP, max(d.Microbatches, z.PP)
			}
			if !d.fits(z) {
				continue
			}
			err := d.check(t)
			for errors.Is(err, errTie) {
				d.Seed++
				err = d.check(t)
			}
			if err != nil {
				t.Errorf("%s: %v\n\trepeat it by -run TestLawOfMeshes -draw '%v'", name, err, d)
			}
		}
	}
}

// TestBiasTimesTensorRanks: pytorch/torchtitan log #4245, NVIDIA/Megatron-LM#6099. An output bias was
// added on every rank of tp, and its norm was counted as often.
func TestBiasTimesTensorRanks(t *testing.T) {
	plain, cut := usualNet(), usualNet()
	cut.Sequence, cut.MaxNorm = true, 0.1
	onMeshes(t, []lawSizes{{TP: 2}, {TP: 4}, {FSDP: 2, TP: 2}, {PP: 2, TP: 2}}, plain, cut)
}

// TestStridedShardsLoseElements: pytorch/pytorch#168134, #150146, #163843, #170914, #179059. Of a
// parameter that two axes cut along the same dim, elements were lost where the sizes do not divide
// it.
func TestStridedShardsLoseElements(t *testing.T) {
	t.Parallel()
	d := usualNet()
	d.Net.Vocabulary, d.Net.Width, d.Net.Positions = 1009, 5, "learned"
	d.Net.Blocks[0].Packed, d.Net.Blocks[0].HeadDim, d.Net.Blocks[1].Hidden, d.File = true, 6, 12, true
	d.Net.Tied = true
	onMeshes(t, []lawSizes{{FSDP: 2, TP: 2}, {FSDP: 2, TP: 4}, {Replicate: 2, FSDP: 2, TP: 2}}, d)
	// Three ranks of fsdp share pieces of 6 rows.
	d.Net.Blocks = slices.Clone(d.Net.Blocks)
	d.Net.Blocks[0].HeadDim = 3
	onMeshes(t, []lawSizes{{FSDP: 3, TP: 2}}, d)
}

// TestNormOfCutAndWholeParameters: NVIDIA/Megatron-LM#5916, huggingface/accelerate#4219. The norm
// missed parameters that only some axes cut, or counted those that all ranks of an axis have.
func TestNormOfCutAndWholeParameters(t *testing.T) {
	d := usualNet()
	d.MaxNorm, d.Sequence = 0.1, true
	onMeshes(t, []lawSizes{{TP: 2}, {CP: 2}, {PP: 2}, {FSDP: 2, TP: 2}, {Replicate: 2, TP: 2}, {FSDP: 2, CP: 2}, {PP: 2, CP: 2}, {PP: 2, FSDP: 2, TP: 2}}, d)
}

// TestScaledByEachStage: deepspeedai/DeepSpeed log #8154. Each stage of a pipeline scaled the gradient
// again.
func TestScaledByEachStage(t *testing.T) {
	t.Parallel()
	d := usualNet()
	d.Net.Blocks = slices.Concat(d.Net.Blocks, d.Net.Blocks)
	three := d
	three.Microbatches, three.Mean = 5, true
	onMeshes(t, []lawSizes{{PP: 2}, {PP: 4}, {PP: 2, FSDP: 2}}, d, three)
}

// TestMeanOfMeansOfMicrobatches: the reports of TestMeanOfLocalMeans. The microbatches of a pipeline and the
// parts of a sequence have unequal numbers of tokens, and some have none.
func TestMeanOfMeansOfMicrobatches(t *testing.T) {
	t.Parallel()
	d := usualNet()
	d.Microbatches, d.MaxNorm = 3, 0.1
	mean := d
	mean.Mean = true
	onMeshes(t, []lawSizes{{PP: 2}, {CP: 2}, {CP: 4}, {FSDP: 2, CP: 2}, {PP: 2, CP: 2}}, d, mean)
}

// TestZeroBubbleBesideReplicas: pytorch/pytorch#144530. Schedules that compute the gradients of weights
// apart did not run the hooks that reduce them over replicas.
func TestZeroBubbleBesideReplicas(t *testing.T) {
	for _, name := range []string{"interleaved-zb", "zbv"} {
		d := usualNet()
		d.Net.Blocks = slices.Concat(d.Net.Blocks, d.Net.Blocks)
		d.Schedule, d.Stages, d.Microbatches, d.MaxNorm = name, 4, 4, 0.1
		onMeshes(t, []lawSizes{{PP: 2}, {PP: 2, Replicate: 2}, {PP: 2, FSDP: 2}}, d)
	}
}

// TestSendsBlockStages: pytorch/pytorch#172668. A pipeline hung where a stage sent while its neighbour sent
// too. Every schedule runs with more and with fewer microbatches than stages.
func TestSendsBlockStages(t *testing.T) {
	for _, name := range schedules {
		for _, n := range []int{1, 2, 3, 4, 7} {
			d := usualNet()
			d.Net.Blocks = slices.Concat(d.Net.Blocks, d.Net.Blocks)
			d.Schedule, d.Microbatches, d.Stages = name, n, 4
			if name == "gpipe" || name == "1f1b" {
				d.Stages = 2
			}
			onMeshes(t, []lawSizes{{PP: 2}}, d)
		}
	}
}

// TestTiedWeightAtBothEnds: the reports of TestTiedWeightGetsHalfItsGradient, with the table of the tokens on
// the first stage and the head on the last one, and both cut.
func TestTiedWeightAtBothEnds(t *testing.T) {
	t.Parallel()
	d := usualNet()
	d.Net.Tied, d.MaxNorm, d.File = true, 0.1, true
	onMeshes(t, []lawSizes{{PP: 2}, {TP: 2}, {PP: 2, TP: 2}, {PP: 2, FSDP: 2}, {PP: 2, Replicate: 2}, {PP: 2, FSDP: 2, TP: 2}}, d)
}

// TestShortSequences: pytorch/pytorch#183968, jzhang38/EasyContext#47. Sequences of few tokens, and lengths
// that are no multiple of twice the ranks, failed or were padded wrongly.
func TestShortSequences(t *testing.T) {
	t.Parallel()
	for _, time := range []int{4, 8, 12} {
		for _, method := range []string{"ring", "heads"} {
			d := usualNet()
			d.Time, d.Method = time, method
			for i := range d.Net.Blocks {
				d.Net.Blocks[i].Heads, d.Net.Blocks[i].KeyHeads = 12, 12
			}
			for _, cp := range []int{2, 3, 4} {
				if time%(2*cp) == 0 {
					onMeshes(t, []lawSizes{{CP: cp}}, d)
				}
			}
		}
	}
}

// TestContextUnequal: pytorch/pytorch#152261, NVIDIA/Megatron-LM#1464. Outputs and gradients of context
// parallelism were not those of one rank.
func TestContextUnequal(t *testing.T) {
	t.Parallel()
	d := usualNet()
	d.Evaluate, d.Net.Positions, d.Time = true, "learned", 24
	again := d
	again.Recompute, again.Net.Blocks = true, slices.Clone(d.Net.Blocks)
	again.Net.Blocks[0].Heads, again.Net.Blocks[1].Window = 8, 5
	heads := again
	heads.Method = "heads"
	onMeshes(t, []lawSizes{{CP: 2}, {CP: 4}, {CP: 2, TP: 2}, {PP: 2, CP: 2}}, d, again, heads)
}

// TestPackedDocumentsInContext: NVIDIA/TransformerEngine#1930, NVIDIA/Megatron-LM log #5243. Packed
// documents could not be cut along the sequence, or their rotary positions were those of the row.
func TestPackedDocumentsInContext(t *testing.T) {
	t.Parallel()
	for _, positions := range []string{"learned", "rotary"} {
		d := usualNet()
		d.Net.Documents, d.Net.Positions, d.Time = true, positions, 16
		outside := d
		outside.Method, outside.Net.Outside = "heads", positions == "rotary"
		onMeshes(t, []lawSizes{{CP: 2}, {CP: 4}, {PP: 2}, {TP: 2}, {CP: 2, TP: 2}, {PP: 2, CP: 2}}, d, outside)
	}
}
