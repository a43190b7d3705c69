// SPDX-License-Identifier: Apache-2.0

package sequences

import (
	"encoding/json"

	"github.com/cohort-ml/cohort/data/records"
)

func (m *maker) hasTemplate() bool { return false }

// ready reports a kind that needs what is not there.
func (m *maker) ready(kind Kind) error {
	if (kind == Messages || kind == ShareGPT) && !m.hasTemplate() {
		return errNoTemplate
	}
	return nil
}

func (m *maker) chat(Kind, records.Record) (sequence, error) { return sequence{}, errNoTemplate }

func (m *maker) chatCompletion(records.Record) (sequence, error) { return sequence{}, errNoTemplate }

func (m *maker) instructionChat(_, _, _ string) (sequence, error) { return sequence{}, errNoTemplate }

func (m *maker) templatePrint() string { return "" }

// prompt is what a model may be asked to go on with.
func (s *source) prompt(r records.Record) string {
	field := map[Kind]string{Text: "text", Instruction: "instruction", Completion: "prompt"}[s.kind]
	if raw, ok := r[s.columns.of(field)].(json.RawMessage); ok {
		var text string
		if json.Unmarshal(raw, &text) != nil {
			return ""
		}
		return text
	}
	text, err := r.Text(s.columns.of(field))
	if err != nil {
		return ""
	}
	return text
}
