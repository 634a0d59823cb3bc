// Runs the C files of an export on a PC: "model" writes the array, "resize HEIGHT WIDTH" resizes an
// image from standard input, and "run FILE" runs all images of a file through the example.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "model.h"
#include "network.h"

extern "C" bool hwnas_setup();
extern "C" bool hwnas_run(const uint8_t *pixels, float *values);

int main(int argc, char **argv) {
  if (!std::strcmp(argv[1], "model")) {
    std::fwrite(hwnas_model, 1, hwnas_model_size, stdout);
    return reinterpret_cast<uintptr_t>(hwnas_model) % 16 != 0;
  }
  std::vector<uint8_t> pixels(HWNAS_INPUTS);
  if (!std::strcmp(argv[1], "resize") && argc == 4) {
    const size_t height = std::atoi(argv[2]), width = std::atoi(argv[3]);
    std::vector<uint8_t> image(height * width * HWNAS_CHANNELS);
    if (std::fread(image.data(), 1, image.size(), stdin) != image.size()) return 1;
    hwnas_resize(image.data(), height, width, pixels.data());
    std::fwrite(pixels.data(), 1, pixels.size(), stdout);
    return 0;
  }
  std::FILE *file = std::fopen(argv[2], "rb");
  if (!file || !hwnas_setup()) return 1;
  while (std::fread(pixels.data(), 1, pixels.size(), file) == pixels.size()) {
    float values[HWNAS_OUTPUTS], confidence;
    if (!hwnas_run(pixels.data(), values)) return 1;
    const size_t best = hwnas_classify(values, &confidence);
    std::fprintf(stderr, "%s %.6f\n", hwnas_labels[best], confidence);
  }
  return 0;
}
