// SPDX-License-Identifier: Apache-2.0

package models

import (
	"fmt"
	"strings"
)

// The plans of tensor parallelism of the models; see parallel.Plan. Ranks share the heads of
// attention, the inside of feed-forward networks, the vocabulary, and the sequence in between.

// TensorPlan says how ranks can share the modules of the model.
func (m *GPT) TensorPlan() string {
	plan := fmt.Sprintf(`
transformer.wte: vocabulary
transformer.wpe: sequence
transformer.h.*.ln_1: sequence
transformer.h.*.attn.c_attn: column packed 3 in %d
transformer.h.*.attn.attention: heads
transformer.h.*.attn.c_proj: row
transformer.h.*.ln_2: sequence
transformer.h.*.mlp.c_fc: column
transformer.h.*.mlp.c_proj: row
transformer.ln_f: sequence
.: logits
`, m.Config.Heads)
	if m.Head == nil {
		return plan + "transformer: output to copy\n" // for the table, which is read as the output layer
	}
	return plan + "lm_head: column\n"
}

// TensorPlan says how ranks can share the modules of the model: each has some of the hidden
// channels of all experts. Every rank runs the router, on all tokens.
func (m *MoETransformer) TensorPlan() string {
	return m.attentionPlan() + expertPlan("model.layers.*.block_sparse_moe", m.Config.SharedHidden > 0) + m.headPlan()
}

// expertPlan is the part of the plan for the experts at a path.
func expertPlan(at string, shared bool) string {
	plan := fmt.Sprintf("%[1]s: input to replicate\n%[1]s: output from replicate to sequence\n%[1]s.experts: experts\n", at)
	if shared {
		plan += fmt.Sprintf(`
%[1]s.shared_expert.gate_proj: column from replicate
%[1]s.shared_expert.up_proj: column from replicate
%[1]s.shared_expert.down_proj: row to replicate
`, at)
	}
	return plan
}

// TensorPlan says how ranks can share the modules of the model. A headless one gives whole
// features.
func (m *BERT) TensorPlan() string {
	var b strings.Builder
	fmt.Fprintf(&b, `
bert.embeddings.word_embeddings: vocabulary
bert.embeddings.position_embeddings: sequence
bert.embeddings.token_type_embeddings: sequence
bert.embeddings.LayerNorm: sequence
bert.embeddings.dropout: sequence
bert.encoder.layer.*.attention.self.query: column in %d
bert.encoder.layer.*.attention.self.key: column in %[1]d
bert.encoder.layer.*.attention.self.value: column in %[1]d
bert.encoder.layer.*.attention.self.attention: heads
bert.encoder.layer.*.attention.output.dense: row
bert.encoder.layer.*.attention.output.dropout: sequence
bert.encoder.layer.*.attention.output.LayerNorm: sequence
bert.encoder.layer.*.intermediate.dense: column
bert.encoder.layer.*.output.dense: row
bert.encoder.layer.*.output.dropout: sequence
bert.encoder.layer.*.output.LayerNorm: sequence
`, m.Config.Heads)
	switch {
	case m.Head == nil:
		b.WriteString(".: output to replicate\n")
	case m.Head.Predictions.Decoder != nil:
		b.WriteString("cls.predictions.transform: sequence\ncls.predictions.decoder: column\n.: logits\n")
	default:
		b.WriteString("cls.predictions.transform: sequence\ncls.predictions.transform: output to copy\ncls.predictions.bias: shard 0\n.: logits\n")
	}
	return b.String()
}
