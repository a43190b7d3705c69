// SPDX-License-Identifier: Apache-2.0

package tensorboard

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Histogram is a distribution: Counts[i] values lie above Limits[i-1] and up to Limits[i].
type Histogram struct {
	Min, Max, Count, Sum, Squares float64
	Limits, Counts                []float64
}

// Field numbers of the messages, from tensorflow/core/util/event.proto, framework/summary.proto and
// tensorboard/plugins/hparams/plugin_data.proto.
const (
	eventTime, eventStep, eventVersion, eventSummary                          = 1, 2, 3, 5
	summaryValue                                                              = 1
	valueTag, valueSimple, valueImage, valueHisto, valueTensor, valueMetadata = 1, 2, 4, 5, 8, 9
	metadataPlugin, pluginName, pluginContent                                 = 1, 1, 2
	tensorType, tensorShape, tensorString, typeString                         = 1, 2, 8, 7
	imageHeight, imageWidth, imageColors, imageData                           = 1, 2, 3, 4
	paramsStart, startParams, startTime, paramsEnd, endStatus, endTime        = 3, 1, 5, 4, 1, 2
	entryKey, entryValue, protoNumber, protoText, protoBool                   = 1, 2, 2, 3, 4
)

// event returns a message Event.
func event(at time.Time, step int) message {
	m := message(nil).double(eventTime, float64(at.UnixMicro())/1e6)
	if step != 0 {
		m = m.integer(eventStep, int64(step))
	}
	return m
}

// summary returns an event with one value.
func summary(at time.Time, step int, tag string, value message) []byte {
	value = append(message(nil).text(valueTag, utf8(tag)), value...)
	return event(at, step).bytes(eventSummary, message(nil).bytes(summaryValue, value))
}

// utf8 makes a text that messages may have.
func utf8(text string) string { return strings.ToValidUTF8(text, "\ufffd") }

func plugin(name string, content message) message {
	p := message(nil).text(pluginName, name)
	if content != nil {
		p = p.bytes(pluginContent, content)
	}
	return message(nil).bytes(valueMetadata, message(nil).bytes(metadataPlugin, p))
}

// scalar is the value of a number.
func scalar(v float64) message { return message(nil).float(valueSimple, float32(v)) }

// histogram is the value of a distribution.
func histogram(h Histogram) message {
	m := message(nil).double(1, h.Min).double(2, h.Max).double(3, h.Count).double(4, h.Sum).double(5, h.Squares)
	return message(nil).bytes(valueHisto, m.doubles(6, h.Limits).doubles(7, h.Counts))
}

// text is the value of a text, in Markdown.
func text(of string) message {
	t := message(nil).integer(tensorType, typeString).bytes(tensorShape, nil).text(tensorString, utf8(of))
	return append(message(nil).bytes(valueTensor, t), plugin("text", nil)...)
}

// image is the value of a picture: a PNG or JPEG of so many pixels.
func image(width, height int, data []byte) message {
	m := message(nil).integer(imageHeight, int64(height)).integer(imageWidth, int64(width)).integer(imageColors, 4)
	return message(nil).bytes(valueImage, m.bytes(imageData, data))
}

// hparams is the value of a run's settings. Numbers and truth values are such.
func hparams(settings map[string]string, began time.Time) message {
	var start message
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		var v message
		setting := settings[name]
		if f, err := strconv.ParseFloat(setting, 64); err == nil && f-f == 0 {
			v = v.double(protoNumber, f)
		} else if setting == "true" || setting == "false" {
			truth := int64(0)
			if setting == "true" {
				truth = 1
			}
			v = v.integer(protoBool, truth)
		} else {
			v = v.text(protoText, utf8(setting))
		}
		start = start.bytes(startParams, message(nil).text(entryKey, utf8(name)).bytes(entryValue, v))
	}
	start = start.double(startTime, float64(began.UnixMicro())/1e6)
	return plugin("hparams", message(nil).bytes(paramsStart, start))
}

// ended is the value of the end of a run: well or not.
func ended(well bool, at time.Time) message {
	status := int64(2) // failure
	if well {
		status = 1
	}
	return plugin("hparams", message(nil).bytes(paramsEnd, message(nil).integer(endStatus, status).double(endTime, float64(at.UnixMicro())/1e6)))
}
