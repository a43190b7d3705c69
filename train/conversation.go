// SPDX-License-Identifier: Apache-2.0

package train

import (
	"context"
	"errors"
	"fmt"

	"github.com/cohort-ml/cohort/data/chat"
)

// Prompt returns the tokens with which a continuation of a text begins.
func (l *LanguageModel) Prompt(text string) ([]int64, error) {
	return beginning(l.CausalLM, l.Tokenizer, text, l.Generation.BOS)
}

// ChatPrompt returns the tokens of a conversation, as the template of the model's folder
// writes it, with what comes before an answer.
func (l *LanguageModel) ChatPrompt(messages []chat.Message) ([]int64, error) {
	if l.Template == nil {
		return nil, errors.New("the model has no chat template (chat_template.jinja, or in tokenizer_config.json): it continues texts, and knows no conversations")
	}
	variables := make(map[string]any)
	for name, token := range l.Tokenizer.SpecialTokens() {
		variables[name] = token
	}
	text, err := l.Template.Render(messages, chat.RenderOptions{AddGenerationPrompt: true, Variables: variables})
	if err != nil {
		return nil, err
	}
	ids := l.Tokenizer.Encode([]byte(text))
	if len(ids) == 0 {
		return nil, errors.New("the conversation is empty")
	}
	if len(ids) >= l.Context() {
		return nil, fmt.Errorf("the conversation has %d tokens, and the model takes %d with its answer: begin a new one", len(ids), l.Context())
	}
	return ids, nil
}

// Generate draws texts after prompts of as many tokens each; see [GenerateAfter].
func (l *LanguageModel) Generate(ctx context.Context, prompts [][]int64, o GenerateOptions, emit func(text int, piece []byte) error) ([]Generated, error) {
	return GenerateAfter(ctx, l.CausalLM, l.Tokenizer, prompts, o, emit)
}
