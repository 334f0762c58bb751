package wire

import "strconv"

const preamble = `{"jsonrpc":"2.0"`

// AppendRequest appends a request with the raw id and params; nil params are
// left out.
func AppendRequest(dst, id []byte, method string, params []byte) []byte {
	dst = append(append(append(dst, preamble...), `,"id":`...), id...)
	return appendCall(dst, method, params)
}

// AppendNotification appends a notification; nil params are left out.
func AppendNotification(dst []byte, method string, params []byte) []byte {
	return appendCall(append(dst, preamble...), method, params)
}

func appendCall(dst []byte, method string, params []byte) []byte {
	dst = AppendString(append(dst, `,"method":`...), method)
	if params != nil {
		dst = append(append(dst, `,"params":`...), params...)
	}
	return append(dst, '}')
}

// AppendResult appends a response with the raw id and result.
func AppendResult(dst, id, result []byte) []byte {
	dst = appendResponse(dst, id)
	return append(append(append(dst, `,"result":`...), result...), '}')
}

// AppendErrorRaw appends a response with the raw id and error object.
func AppendErrorRaw(dst, id, object []byte) []byte {
	dst = appendResponse(dst, id)
	return append(append(append(dst, `,"error":`...), object...), '}')
}

// AppendError appends an error response; a nil id is written as null, nil
// data is left out.
func AppendError(dst, id []byte, code int, msg string, data []byte) []byte {
	dst = appendResponse(dst, id)
	dst = strconv.AppendInt(append(dst, `,"error":{"code":`...), int64(code), 10)
	dst = AppendString(append(dst, `,"message":`...), msg)
	if data != nil {
		dst = append(append(dst, `,"data":`...), data...)
	}
	return append(dst, "}}"...)
}

func appendResponse(dst, id []byte) []byte {
	dst = append(append(dst, preamble...), `,"id":`...)
	if id == nil {
		return append(dst, "null"...)
	}
	return append(dst, id...)
}
