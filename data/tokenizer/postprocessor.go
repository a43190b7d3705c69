// SPDX-License-Identifier: Apache-2.0

package tokenizer

// templateItem is a part of what the model sees for a text or a pair of texts: a
// text, or special tokens, with the type that its tokens have.
type templateItem struct {
	text int // 0 or 1; -1 for special tokens
	ids  []int64
	kind int64
}

// parsePostProcessor reads which special tokens are put around a text, and
// around a pair of texts.
func (f *pipeline) parsePostProcessor(d *document) error {
	const field = "post_processor"
	parts, err := parseComponent(field, d.PostProcessor)
	if err != nil {
		return err
	}
	f.single, f.pair = []templateItem{{text: 0}}, []templateItem{{text: 0}, {text: 1, kind: 1}}
	given := false
	for _, c := range parts {
		switch c.Type {
		case "ByteLevel": // about offsets only
			continue
		case "TemplateProcessing", "BertProcessing", "RobertaProcessing":
			if given {
				return formatErr(field, "more than one %s is not supported", c.Type)
			}
			given = true
		default:
			return formatErr(field, "%s is not supported: only ByteLevel, TemplateProcessing, BertProcessing and RobertaProcessing", c.Type)
		}
		if c.Type == "TemplateProcessing" {
			err = f.parseTemplates(field, c)
		} else {
			err = f.parseAround(field, c)
		}
		if err != nil {
			return err
		}
	}
	for i, item := range f.single {
		if item.text < 0 {
			continue
		}
		for _, b := range f.single[:i] {
			f.before = append(f.before, b.ids...)
		}
		for _, a := range f.single[i+1:] {
			f.after = append(f.after, a.ids...)
		}
	}
	return nil
}

func (f *pipeline) parseTemplates(field string, c component) error {
	var err error
	if f.single, err = c.template(field, c.Single, 1); err != nil {
		return err
	}
	if c.Pair == nil {
		f.pair = nil
		return nil
	}
	f.pair, err = c.template(field, c.Pair, 2)
	return err
}

// template reads a template that has each of num texts once.
func (c component) template(field string, pieces []templatePiece, num int) ([]templateItem, error) {
	what := map[int]string{1: "one text", 2: "a pair of texts"}[num]
	var seen [2]bool
	var out []templateItem
	for _, p := range pieces {
		switch {
		case p.Sequence != nil && (p.Sequence.ID == "A" || p.Sequence.ID == "B" && num == 2):
			text := 0
			if p.Sequence.ID == "B" {
				text = 1
			}
			if seen[text] {
				return nil, formatErr(field, "the template for %s contains a text twice", what)
			}
			seen[text] = true
			out = append(out, templateItem{text: text, kind: p.Sequence.TypeID})
		case p.SpecialToken != nil:
			s, ok := c.SpecialTokens[p.SpecialToken.ID]
			if !ok {
				return nil, formatErr(field, "special token %q is not explained", p.SpecialToken.ID)
			}
			out = append(out, templateItem{text: -1, ids: s.IDs, kind: p.SpecialToken.TypeID})
		default:
			return nil, formatErr(field, "the template for %s has a piece that is not supported", what)
		}
	}
	if !seen[0] || num == 2 && !seen[1] {
		return nil, formatErr(field, "the template for %s does not contain it", what)
	}
	return out, nil
}

// parseAround reads the post-processors of BERT and RoBERTa.
func (f *pipeline) parseAround(field string, c component) error {
	if c.Cls == nil || c.Sep == nil || c.Cls.ID < 0 || c.Sep.ID < 0 {
		return formatErr(field, "%s needs cls and sep, each with its token and id", c.Type)
	}
	special := func(kind int64, ids ...int64) templateItem { return templateItem{text: -1, ids: ids, kind: kind} }
	cls, sep := c.Cls.ID, c.Sep.ID
	f.single = []templateItem{special(0, cls), {text: 0}, special(0, sep)}
	if c.Type == "BertProcessing" {
		f.pair = []templateItem{special(0, cls), {text: 0}, special(0, sep), {text: 1, kind: 1}, special(1, sep)}
		return nil
	}
	f.pair = []templateItem{special(0, cls), {text: 0}, special(0, sep), special(0, sep), {text: 1}, special(0, sep)}
	return nil
}

// checkAround refuses special tokens around texts that are no tokens.
func (t *Tokenizer) checkAround() error {
	for _, template := range [][]templateItem{t.pipeline.single, t.pipeline.pair} {
		for _, item := range template {
			for _, id := range item.ids {
				if t.Token(id) == nil {
					return formatErr("post_processor", "id %d has no token", id)
				}
			}
		}
	}
	return nil
}
