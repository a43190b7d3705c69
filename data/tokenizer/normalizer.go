// SPDX-License-Identifier: Apache-2.0

package tokenizer

// parseNormalizer reads what is done to a text before it is split.
func (f *pipeline) parseNormalizer(d *document) error {
	const field = "normalizer"
	parts, err := parseComponent(field, d.Normalizer)
	if err != nil {
		return err
	}
	for i, c := range parts {
		switch {
		case c.Type == "Prepend" && c.Prepend == mark && i == 0:
			f.lead = leadAlways
		case c.Type == "Replace" && c.Pattern != nil && c.Pattern.String != nil && *c.Pattern.String == " " && c.Content == mark:
			f.replace, f.marks = true, true
		default:
			return formatErr(field, "%s is not supported: only Prepend of %q and Replace of a space by it", c.Type, mark)
		}
	}
	if f.lead == leadAlways && !f.replace {
		return formatErr(field, "Prepend without Replace is not supported")
	}
	return nil
}
