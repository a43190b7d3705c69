// SPDX-License-Identifier: Apache-2.0

package tokenizer

// parsePostProcessor reads which special tokens are put around a text.
func (f *pipeline) parsePostProcessor(d *document) error {
	const field = "post_processor"
	parts, err := parseComponent(field, d.PostProcessor)
	if err != nil {
		return err
	}
	for _, c := range parts {
		switch c.Type {
		case "ByteLevel": // about offsets only
		case "TemplateProcessing":
			if f.before != nil || f.after != nil {
				return formatErr(field, "more than one TemplateProcessing is not supported")
			}
			seen := false
			for _, p := range c.Single {
				switch {
				case p.Sequence != nil && p.Sequence.ID == "A" && !seen:
					seen = true
				case p.SpecialToken != nil:
					s, ok := c.SpecialTokens[p.SpecialToken.ID]
					if !ok {
						return formatErr(field, "special token %q is not explained", p.SpecialToken.ID)
					}
					if seen {
						f.after = append(f.after, s.IDs...)
					} else {
						f.before = append(f.before, s.IDs...)
					}
				default:
					return formatErr(field, "the template for one text has a piece that is not supported")
				}
			}
			if !seen {
				return formatErr(field, "the template for one text does not contain it")
			}
		default:
			return formatErr(field, "%s is not supported: only ByteLevel and TemplateProcessing", c.Type)
		}
	}
	return nil
}
