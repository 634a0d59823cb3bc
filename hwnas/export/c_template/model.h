/* $title */
#pragma once

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The bytes of $file, aligned to 16 bytes. */
extern const unsigned char hwnas_model[];
extern const size_t hwnas_model_size;

#ifdef __cplusplus
}
#endif
