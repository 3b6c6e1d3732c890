// Reads manifests as JSON documents, one after the other, and holds each against Kubernetes' own Go types (k8s.io/api): strict
// decoding, deprecated versions of APIs, and fields whose documentation says that they are deprecated. It prints a JSON list for
// each document, a line each: what is wrong with it. A kind that is none of Kubernetes' own is wrong, too.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"regexp"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/kubernetes/scheme"
)

// What the types' documentation says of such fields ("Deprecated: use X", "DeprecatedServiceAccount is a deprecated alias",
// "This field is deprecated"), and not of fields that only mention another one's end.
var deprecated = regexp.MustCompile(`(?i)^deprecated|\bDeprecated:|is deprecated|is a deprecated`)

type documented interface{ SwaggerDoc() map[string]string }

type lifecycle interface{ APILifecycleDeprecated() (major, minor int) }

func main() {
	decoder := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	documents := json.NewDecoder(os.Stdin)
	for {
		var document json.RawMessage
		if err := documents.Decode(&document); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		line, err := json.Marshal(problems(decoder, document))
		if err != nil {
			panic(err)
		}
		fmt.Println(string(line))
	}
}

func problems(decoder runtime.Decoder, document []byte) []string {
	found := []string{}
	object, kind, err := decoder.Decode(document, nil, nil)
	if err != nil {
		found = append(found, err.Error())
	}
	if object == nil {
		return found
	}
	if old, ok := object.(lifecycle); ok {
		major, minor := old.APILifecycleDeprecated()
		found = append(found, fmt.Sprintf("%s is deprecated since %d.%d", kind, major, minor))
	}
	return append(found, fields("", reflect.ValueOf(object))...)
}

// fields returns the deprecated fields below value that are set.
func fields(path string, value reflect.Value) []string {
	found := []string{}
	switch value.Kind() {
	case reflect.Pointer, reflect.Interface:
		if !value.IsNil() {
			return fields(path, value.Elem())
		}
	case reflect.Slice, reflect.Array:
		for index := 0; index < value.Len(); index++ {
			found = append(found, fields(fmt.Sprintf("%s[%d]", path, index), value.Index(index))...)
		}
	case reflect.Map:
		for _, key := range value.MapKeys() {
			found = append(found, fields(fmt.Sprintf("%s[%v]", path, key), value.MapIndex(key))...)
		}
	case reflect.Struct:
		said := map[string]string{}
		if with, ok := value.Interface().(documented); ok {
			said = with.SwaggerDoc()
		}
		for index := 0; index < value.NumField(); index++ {
			field := value.Type().Field(index)
			if !field.IsExported() || value.Field(index).IsZero() {
				continue
			}
			name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			below := path
			if name != "" {
				below = path + "." + name
			}
			if deprecated.MatchString(said[name]) {
				found = append(found, fmt.Sprintf("%s is deprecated: %s", below, said[name]))
			}
			found = append(found, fields(below, value.Field(index))...)
		}
	}
	return found
}
