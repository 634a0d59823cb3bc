// A stub of TensorFlow Lite Micro for tests on a PC.
#pragma once

namespace tflite {

struct Model;

inline const Model *GetModel(const void *content) { return static_cast<const Model *>(content); }

}  // namespace tflite
