// SPDX-License-Identifier: Apache-2.0

package chat

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// The files of a folder that have templates, and the special tokens for them.
const (
	templateFile = "chat_template.jinja"
	moreDir      = "additional_chat_templates"
	settingsFile = "tokenizer_config.json"
	specialsFile = "special_tokens_map.json"
)

// maxFile limits the bytes of each of them.
const maxFile = 16 << 20

// ErrNoTemplate says that a folder has no chat template.
var ErrNoTemplate = errors.New("has no chat template")

// tokenNames are the special tokens that templates know.
var tokenNames = []string{"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"}

// Load reads the template of a model's folder, as transformers does: from
// chat_template.jinja and additional_chat_templates, or else from
// tokenizer_config.json. Of several templates it takes the one named default,
// and for conversations with tools the one named tool_use. The template knows
// the folder's special tokens, such as bos_token. If there is none, the error
// is [ErrNoTemplate].
func Load(dir string) (*Template, error) { return load(dir, "") }

// LoadNamed is [Load] for one of several templates.
func LoadNamed(dir, name string) (*Template, error) { return load(dir, name) }

func load(dir, name string) (*Template, error) {
	named, tokens, err := readFolder(dir)
	if err != nil {
		return nil, err
	}
	names := slices.Sorted(maps.Keys(named))
	pick := name
	if name == "" {
		pick = "default"
	}
	from, ok := named[pick]
	switch {
	case len(named) == 0:
		return nil, fmt.Errorf("chat: %s %w: neither a %s nor a chat_template in %s", dir, ErrNoTemplate, templateFile, settingsFile)
	case !ok && name == "":
		return nil, fmt.Errorf("chat: %s has several chat templates, and none is the default: choose one of %s", dir, strings.Join(names, ", "))
	case !ok:
		return nil, fmt.Errorf("chat: %s has no chat template %q: there are %s", dir, name, strings.Join(names, ", "))
	}
	t, err := parse(from.source, from.path)
	if err != nil {
		return nil, err
	}
	t.tokens = tokens
	if tool, ok := named["tool_use"]; ok && name == "" {
		if t.tools, err = parse(tool.source, tool.path); err != nil {
			return nil, err
		}
		t.tools.tokens = tokens
	}
	return t, nil
}

type named struct{ source, path string }

// readFolder returns the templates of a folder by name, and the special tokens.
func readFolder(dir string) (map[string]named, map[string]string, error) {
	if info, err := os.Stat(dir); err != nil {
		return nil, nil, fmt.Errorf("chat: %w", err)
	} else if !info.IsDir() {
		return nil, nil, fmt.Errorf("chat: %s is no folder", dir)
	}
	settings, specials := map[string]json.RawMessage{}, map[string]json.RawMessage{}
	for name, into := range map[string]any{settingsFile: &settings, specialsFile: &specials} {
		path := filepath.Join(dir, name)
		b, err := readFile(path)
		if errors.Is(err, os.ErrNotExist) {
			continue
		} else if err != nil {
			return nil, nil, err
		}
		if err := json.Unmarshal(b, into); err != nil {
			return nil, nil, fmt.Errorf("chat: %s: %w", path, err)
		}
	}
	if _, ok := settings["added_tokens_decoder"]; ok {
		clear(specials) // then the tokenizer_config.json counts alone
	}
	tokens := make(map[string]string)
	for _, name := range tokenNames {
		for _, from := range []map[string]json.RawMessage{settings, specials} {
			token, err := tokenText(from[name])
			if err != nil {
				return nil, nil, fmt.Errorf("chat: %s: %s: %w", filepath.Join(dir, settingsFile), name, err)
			}
			if token != "" {
				tokens[name] = token
			}
		}
	}
	found, err := templateFiles(dir)
	if err == nil && len(found) == 0 {
		found, err = settingsTemplates(filepath.Join(dir, settingsFile), settings["chat_template"])
	}
	return found, tokens, err
}

func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("chat: %w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("chat: %s: %w", path, err)
	}
	if len(b) > maxFile {
		return nil, fmt.Errorf("chat: %s is longer than %d bytes", path, maxFile)
	}
	return b, nil
}

// tokenText is the text of a special token, "" if there is none.
func tokenText(raw json.RawMessage) (string, error) {
	if raw == nil || isNull(raw) {
		return "", nil
	}
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return text, nil
	}
	var token struct{ Content *string }
	if err := json.Unmarshal(raw, &token); err != nil || token.Content == nil {
		return "", fmt.Errorf("must be a string or an object with \"content\"")
	}
	return *token.Content, nil
}

// templateFiles reads the templates that are files of their own.
func templateFiles(dir string) (map[string]named, error) {
	found := make(map[string]named)
	paths := map[string]string{"default": filepath.Join(dir, templateFile)}
	more, err := os.ReadDir(filepath.Join(dir, moreDir))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("chat: %w", err)
	}
	for _, e := range more {
		if name, ok := strings.CutSuffix(e.Name(), ".jinja"); ok {
			paths[name] = filepath.Join(dir, moreDir, e.Name())
		}
	}
	for name, path := range paths {
		b, err := readFile(path)
		if errors.Is(err, os.ErrNotExist) {
			continue
		} else if err != nil {
			return nil, err
		}
		found[name] = named{string(b), path}
	}
	return found, nil
}

// settingsTemplates reads chat_template of a tokenizer_config.json: a template,
// or a list of several with names.
func settingsTemplates(path string, raw json.RawMessage) (map[string]named, error) {
	found := make(map[string]named)
	if raw == nil || isNull(raw) {
		return found, nil
	}
	path += " (chat_template)"
	var one string
	if json.Unmarshal(raw, &one) == nil {
		found["default"] = named{one, path}
		return found, nil
	}
	var list []struct{ Name, Template *string }
	if err := json.Unmarshal(raw, &list); err != nil {
		return nil, fmt.Errorf("chat: %s must be a string, or a list of objects with name and template", path)
	}
	for i, t := range list {
		if t.Name == nil || t.Template == nil {
			return nil, fmt.Errorf("chat: %s: entry %d has no name or no template", path, i)
		}
		found[*t.Name] = named{*t.Template, path + ", " + *t.Name}
	}
	return found, nil
}
