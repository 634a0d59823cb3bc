/* Runs the C files of an export on a PC, as firmware in C would: "model" writes the array, "resize
   HEIGHT WIDTH" resizes an image from standard input, and "run FILE" runs all images of a file. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "example.h"
#include "model.h"
#include "network.h"

static uint8_t pixels[HWNAS_INPUTS];

int main(int argc, char **argv) {
  if (!strcmp(argv[1], "model")) {
    fwrite(hwnas_model, 1, hwnas_model_size, stdout);
    return (uintptr_t)hwnas_model % 16 != 0;
  }
  if (!strcmp(argv[1], "resize") && argc == 4) {
    const size_t height = (size_t)atoi(argv[2]), width = (size_t)atoi(argv[3]);
    const size_t size = height * width * HWNAS_CHANNELS;
    uint8_t *image = malloc(size);
    if (!image || fread(image, 1, size, stdin) != size) return 1;
    hwnas_resize(image, height, width, pixels);
    free(image);
    fwrite(pixels, 1, sizeof pixels, stdout);
    return 0;
  }
  FILE *file = fopen(argv[2], "rb");
  if (!file || !hwnas_setup()) return 1;
  while (fread(pixels, 1, sizeof pixels, file) == sizeof pixels) {
    float values[HWNAS_OUTPUTS], confidence;
    if (!hwnas_run(pixels, values)) return 1;
    const size_t best = hwnas_classify(values, &confidence);
    fprintf(stderr, "%s %.6f\n", hwnas_labels[best], (double)confidence);
  }
  return 0;
}
