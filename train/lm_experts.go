// SPDX-License-Identifier: Apache-2.0

package train

import "fmt"

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
	if c.Experts == 0 {
		for name, n := range map[string]int{"active": c.Active, "shared-experts": c.SharedExperts} {
			if n != 0 {
				return fmt.Errorf("train lm: --%s needs --experts, the number of experts", name)
			}
		}
		return nil
	}
	return nil
}
