// SPDX-License-Identifier: Apache-2.0

package train

import (
	"cmp"
	"fmt"
	"math"

	"github.com/cohort-ml/cohort/models"
	"github.com/cohort-ml/cohort/nn"
)

// ExpertConfig has the settings of [LMConfig] for a mixture of experts: a Llama whose
// feed-forward networks are many, of which each token uses a few.
type ExpertConfig struct {
	Experts       int     `json:"experts,omitempty" run:"fixed" group:"Model" usage:"feed-forward networks of each layer, of which a token uses --active (mixture of experts); 0: one for all tokens"`
	Active        int     `json:"active,omitempty" run:"fixed" usage:"for --experts: how many of them a token uses; 0: 2"`
	SharedExperts int     `json:"shared_experts,omitempty" run:"fixed" usage:"for --experts: experts beside them that every token uses"`
	Balance       float64 `json:"balance,omitempty" usage:"for --experts: weight of the loss that keeps experts equally busy"`
	Capacity      float64 `json:"capacity,omitempty" usage:"for --experts: an expert takes at most {NUMBER} times its even share of the tokens of a pass, and the rest pass it by; 0: no limit"`
}

// validateExperts reports settings of experts that make no model.
func (c LMConfig) validateExperts() error {
	fail := func(format string, args ...any) error { return fmt.Errorf("train lm: "+format, args...) }
	if c.Experts == 0 {
		for _, s := range []struct {
			name  string
			given bool
		}{{"active", c.Active != 0}, {"shared-experts", c.SharedExperts != 0}, {"capacity", c.Capacity != 0}} {
			if s.given {
				return fail("--%s is of a mixture of experts, and the model has none: give --experts, or leave --%s out", s.name, s.name)
			}
		}
		return nil
	}
	switch {
	case c.InitFrom != "":
		return fail("--experts cannot be given with --init-from: the model in %s decides it", c.InitFrom)
	case c.Model == "gpt2":
		return fail("--experts makes a mixture of experts of Llama's kind: leave --model gpt2 out")
	}
	if err := checkWholes("lm", []whole{
		{"experts", c.Experts, 1, 1 << 16}, {"active", c.active(), 1, c.Experts}, {"shared-experts", c.SharedExperts, 0, 1 << 10},
	}); err != nil {
		return err
	}
	return checkNumbers("lm", []number{
		{"balance", c.Balance, c.Balance >= 0 && c.Balance <= math.MaxFloat32, "a finite number from 0 on"},
		{"capacity", c.Capacity, c.Capacity >= 0 && c.Capacity <= math.MaxFloat32, "a finite number from 0 on"},
	})
}

func (c ExpertConfig) active() int { return cmp.Or(c.Active, min(2, c.Experts)) }

// mixture returns the sizes of a mixture of experts. An expert is as wide as the feed-forward
// network of the Llama of the same settings.
func (c LMConfig) mixture(vocab int) models.MoEConfig {
	llama := c.llama(vocab)
	return models.MoEConfig{
		LlamaConfig: llama, Experts: c.Experts, Active: c.active(), SharedHidden: c.SharedExperts * llama.Hidden,
		Router: nn.MoEOptions{Balance: c.Balance, Capacity: c.Capacity},
	}
}
