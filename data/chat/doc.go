// SPDX-License-Identifier: Apache-2.0

// Package chat writes conversations as the text that a model was trained on.
//
// A conversation is a list of [Message] values. A [Template] turns it into one
// text, with the marks that the model knows: where a message begins and ends,
// who speaks, which tools there are. The template comes with the model, in its
// folder ([Load]), in the language Jinja. What [Template.Render] writes is what
// apply_chat_template of the Hugging Face library transformers (5.24) writes.
//
//	t, err := chat.Load("models/qwen")
//	text, err := t.Render([]chat.Message{
//		{Role: "user", Content: chat.Text("Who wrote Faust?")},
//	}, chat.RenderOptions{AddGenerationPrompt: true})
//	ids := tokenizer.Encode([]byte(text)) // not EncodeInput: the template writes <s>
//
// For training, [Template.RenderSpans] also says which parts of the text the
// assistant wrote, so that a loss can count only these.
//
// Messages are read from JSON as data sets have them. Fields that this package
// does not know are kept and given to the template. Content may be a string, or
// a list of parts of the type text; images and sounds are refused.
//
// A template is a program of a stranger. It can read no file and use no other
// template, and its time and memory are limited. A construct that is not known
// is an error with its line when the template is read. A Template is safe for
// concurrent use.
package chat
